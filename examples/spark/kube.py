"""A small client of the API server of $KUBECONFIG: calls and a watch. Standard library only.

It reads only kubeconfigs with one server and at most a token, or with files: a certificate and its key.
"""

import base64
import json
import os
import re
import ssl
import urllib.request

NAMESPACE = "/api/v1/namespaces/default"
PODS, CONFIG_MAPS = f"{NAMESPACE}/pods", f"{NAMESPACE}/configmaps"
SECONDS_PER_CALL = 30


class Api:
    def __init__(self, agent):
        """`agent`: the User-Agent, which the server's audit log records."""
        with open(os.environ["KUBECONFIG"], encoding="utf-8") as file:
            text = file.read()
        self.server, authority, file, token, certificate, key = (
            found and found.group(1) for found in (re.search(rf'\b{word}: *"?([^",}}\s]+)', text) for word in (
                "server", "certificate-authority-data", "certificate-authority", "token", "client-certificate", "client-key")))
        self.headers = {"user-agent": agent, **({"authorization": f"Bearer {token}"} if token else {})}
        trusted = ssl.create_default_context(cafile=file, cadata=authority and base64.b64decode(authority).decode())
        if certificate:
            trusted.load_cert_chain(certificate, key)
        self.opener = urllib.request.build_opener(
            urllib.request.ProxyHandler({}), urllib.request.HTTPSHandler(context=trusted))

    def open(self, method, path, body=None, kind="application/json", timeout=SECONDS_PER_CALL):
        request = urllib.request.Request(
            self.server + path, None if body is None else json.dumps(body).encode(),
            {**self.headers, "content-type": kind}, method=method)
        return self.opener.open(request, timeout=timeout)

    def call(self, method, path, body=None, kind="application/json"):
        with self.open(method, path, body, kind) as answer:
            return json.load(answer)

    def get(self, path):
        return self.call("GET", path)

    def watch(self, path):
        """Watch events, beginning with the existing objects, until the server ends the watch."""
        with self.open("GET", f"{path}?watch=true", timeout=None) as lines:
            yield from map(json.loads, lines)
