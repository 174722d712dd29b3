"""A posse.yaml for a run of this process whose executors share a secret."""

from __future__ import annotations

import json
import os
import secrets
from pathlib import Path
from typing import Any, Dict, Mapping, Sequence, Tuple


def write_configuration(
    folder: str,
    app: str,
    secret: Mapping[str, Tuple[str, str]],
    group: Mapping[str, Any],
    env: Sequence[Mapping[str, Any]] = (),
) -> str:
    """Writes it into `folder`, which only this user can read, and returns its path.

    `secret`: for each variable of the executors, the name of its file in the Secret and its contents.
    """
    name = f"{app}-{secrets.token_hex(4)}"
    # As variables, and not as files: files would need a mount, which not every machine allows with `dev`.
    taken = [
        {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": file}}}
        for variable, (file, _) in secret.items()
    ]
    paths = []
    for file, contents in secret.values():
        paths.append(os.path.join(folder, file))
        Path(paths[-1]).write_text(contents)
    entry: Dict[str, Any] = {
        "name": "secret", "command": ["cp", *paths, "{{DIR}}"], "every": "365d", "secret": name, "mount": "/posse-secret"
    }
    whole = {**group, "credentials": [], "env": [*taken, *env]}
    if "image" in whole and not whole.keys() & {"pod", "template"}:
        # What an executor says when it fails becomes a part of posse's words about its loss.
        container = {"name": "executor", "terminationMessagePolicy": "FallbackToLogsOnError"}
        whole["pod"] = {"spec": {"containers": [container]}}
    path = Path(folder, "posse.json")
    path.write_text(json.dumps({"app": app, "credentials": [entry], "executors": [whole]}))
    return str(path)
