"""The client of a run's control API."""

from __future__ import annotations

import http.client
import json
import math
import time
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Set
from urllib.parse import quote, urlencode

from ._http import QUIET_SECONDS, Door, Refused, Unreachable
from ._types import Event, Group, Killed, Loss, Status, Task

# How long to wait between two tries of a call.
PAUSE_SECONDS = 0.5
# The longest line of an event: a message has at most 4 KiB, a log has at most 1,000 lines.
LINE_BYTES_MAX = 4 << 20

# An executor in one of these states is there. One that drains still does the driver's work, and its loss will be told.
LIVE = ("requested", "pending", "running", "draining")


class Client:
    """A client of one run of posse.

    `address`: `unix:PATH` or a loopback `HOST:PORT`; by default $POSSE_CONTROL, which posse sets for its driver.
    `token_file`: a file with the token for a `HOST:PORT`; by default $POSSE_CONTROL_TOKEN_FILE.
    `wait`: how many seconds a call waits for posse: if it is not ready yet or busy, or if it has answered before and
    now does not (it may be restarting). Repeating a call changes nothing, so calls are made again until then.

    A client may be used from several threads at once. Every method raises `Refused` if posse refuses the call,
    and `Unreachable` if posse does not answer within `wait`.
    """

    def __init__(
        self, address: Optional[str] = None, token_file: Optional[str] = None, *, wait: float = 60.0
    ) -> None:
        self._door = Door(address, token_file)
        self._wait = wait
        self._has_answered = False
        # Says why posse will never answer again, if that is known: `Run` knows it.
        self._why_gone: Callable[[], Optional[str]] = lambda: None

    def __repr__(self) -> str:
        return f"posse.Client({self.address!r})"

    @property
    def address(self) -> str:
        """The address of the control API."""
        return self._door.address

    def call(self, method: str, path: str, body: Optional[object] = None) -> Any:
        """Makes any call of docs/CONTROL_API.md, and returns the JSON value of its answer."""
        return self._until_answered(lambda: self._door.call(method, path, body))

    def _until_answered(self, make: Callable[[], Any], seconds_max: float = math.inf) -> Any:
        until = time.monotonic() + min(self._wait, seconds_max)
        while True:
            pause = PAUSE_SECONDS
            try:
                answer = make()
                self._has_answered = True
                return answer
            except Unreachable as error:
                if why := self._why_gone():
                    raise Unreachable(why) from error
                if not self._has_answered or time.monotonic() + pause > until:
                    raise
            except Refused as error:
                self._has_answered = True
                pause = max(pause, error.retry_after or 0.0)
                if error.status not in (429, 503) or time.monotonic() + pause > until:
                    raise
            time.sleep(pause)

    def status(self) -> Status:
        """The state of the run: groups, executors, and what they wait for."""
        return self._status_within(math.inf)

    def _status_within(self, seconds: float) -> Status:
        return Status.of(self._until_answered(lambda: self._door.call("GET", "/v1/status"), seconds))

    def groups(self) -> Dict[str, Group]:
        """The groups by name."""
        return self.status().groups

    def scale(self, target: int, group: Optional[str] = None) -> int:
        """Sets how many executors a group should have, and returns the number in force: `min` and `max` bound it.

        `group` may be left out if there is only one.
        """
        answer = self.call("PUT", self._group_path(group), {"target": target})
        return int(answer["target"])

    def put_group(self, group: str, template: Mapping[str, Any], **settings: Any) -> int:
        """Creates a group from a template (a v1 Pod as a mapping), or changes the template of its next pods.

        `settings`: `target`, `min`, `max`, `container`, `scale_down`, `replace`, `slots`, `on_loss`, `restart`,
        `completions`, `decommission`, `beside`, `volumes_per_slot`; what is left out keeps its value.
        Returns the target in force. If the API server refuses the pod, `Refused` has its words.
        """
        answer = self.call("PUT", self._group_path(group), {"template": template, **settings})
        return int(answer["target"])

    def delete_group(self, group: str) -> None:
        """Ends the group's executors, then removes the group."""
        self.call("DELETE", self._group_path(group))

    def kill(
        self,
        executors: Iterable[int],
        *,
        replace: bool = True,
        target: Optional[int] = None,
        force: bool = False,
        heartbeat_timeout: bool = False,
        reason: Optional[str] = None,
    ) -> Killed:
        """Ends these executors, by their ids.

        `replace`: others take their places; with False the target falls by one for each of them.
        `target`: the target of their group from then on, set in the same step.
        `force`: also those that work (see `idle`), and without a drain period.
        `heartbeat_timeout`: the driver has not heard from them for too long. They have failed, which spends a budget.
        `reason`: what the event `executor_lost` has as its message.
        """
        body: Dict[str, Any] = {"executors": list(executors), "force": force}
        if target is not None:
            body["target"] = target
        else:
            body["replace"] = replace
        if heartbeat_timeout:
            body["heartbeat_timeout"] = True
        if reason is not None:
            body["reason"] = reason
        answer = self.call("POST", "/v1/executors/kill", body)
        return Killed(answer["killed"], answer["busy"], answer["unknown"], answer["target"])

    def idle(self, executors: Iterable[int]) -> List[int]:
        """Says that these executors have no work, and that all others work. Valid for 10 s; say it again before.

        Returns the ids that posse does not know.
        """
        return self._report("idle", executors)

    def heartbeat(self, executors: Iterable[int], memory: Optional[Mapping[int, int]] = None) -> List[int]:
        """Says from which executors the driver has heard since the last call; the list may be empty.

        memory: how many bytes some of them use, for `oom_growth.grow_at`.

        Returns the ids that posse does not know.
        """
        more = {"memory": {str(executor): used for executor, used in memory.items()}} if memory else {}
        return self._report("heartbeat", executors, **more)

    def _report(self, what: str, executors: Iterable[int], **more: Any) -> List[int]:
        answer = self.call("POST", f"/v1/executors/{what}", {"executors": sorted(executors), **more})
        return list(answer["unknown"])

    def disconnected(self, executor: int) -> None:
        """Says that the driver lost its connection to this executor: posse looks for the reason, and replaces it."""
        self.call("POST", f"/v1/executors/{executor}/disconnected")

    def ready(self, page: Optional[str] = None) -> None:
        """Lets posse create executors, if the configuration has `driver.ready: control`. `page`: the URL of the driver's
        own page, to which posse's page has a link then.
        """
        self.call("POST", "/v1/driver/ready", None if page is None else {"page": page})

    def wait_ready(self) -> None:
        """Waits until posse has listed the executors that exist already, at most `wait` seconds."""
        self.call("GET", "/readyz")

    def wait_running(self, n: int, group: Optional[str] = None, *, timeout: float = 600.0) -> Status:
        """Waits until at least `n` executors run, of one group or of all. Returns the status then.

        Raises TimeoutError with what the groups wait for, if that takes longer than `timeout` seconds, and
        `Unreachable` if posse does not answer then.
        """
        until = time.monotonic() + timeout
        while True:
            status = self._status_within(until - time.monotonic())
            groups = [one for one in status.groups.values() if group in (None, one.name)]
            if sum(one.running for one in groups) >= n:
                return status
            if time.monotonic() > until:
                found = ", ".join(_brief(one) for one in groups) or f"there is no group {group}"
                raise TimeoutError(f"{n} executors do not run after {timeout:g} s: {found}")
            time.sleep(PAUSE_SECONDS / 5)

    def events(self, *, follow: bool = True, after: Optional[Event] = None) -> Iterator[Event]:
        """The events of the run, from the first that posse still has, or from the one after `after`.

        With `follow` it goes on with new ones until the run ends (the last one is `stopped`). A connection that
        breaks is opened again where it stopped, so that no event is missing; if that cannot be, an event `missed`
        or `restarted` says so.
        """
        last = after
        while True:
            query = {"run": last.run, "after": str(last.seq)} if last else {}
            if follow:
                query["follow"] = "true"
            path = "/v1/events" + ("?" + urlencode(query) if query else "")
            try:
                answer = self._until_answered(lambda: self._door.open("GET", path, None, QUIET_SECONDS))
            except Refused as error:
                if error.status != 409 or last is None:
                    raise
                yield Event("restarted", last.run, last.seq, last.time, None, None, {"event": "restarted"})
                last = None
                continue
            for event in _read(answer):
                last = event
                yield event
            if not follow or (last is not None and last.name == "stopped"):
                return
            time.sleep(PAUSE_SECONDS)

    @property
    def executors(self) -> Executors:
        """The tasks: executors that run once, each under a key. See `Executors`."""
        return Executors(self)

    def losses(self) -> Losses:
        """What a driver needs to know of the executors that are gone. See `Losses`."""
        return Losses(self)

    def _group_path(self, group: Optional[str]) -> str:
        if group is None:
            names = list(self.groups())
            if len(names) != 1:
                raise ValueError(f"name the group: there are {len(names)} ({', '.join(names)})")
            group = names[0]
        return "/v1/groups/" + quote(group, safe="")


class Executors:
    """Tasks: executors that run once, each under a key that the caller chooses.

    A task with a known key and the same contents does not run again, so after a restart of posse or of the caller all
    tasks may be submitted again. With other contents `Refused` has the status 409 and the field that differs; with more
    than 20,000 open tasks, or 32 MiB of them, it has the status 429. Every method takes `group`, which may be left out if there is only one.
    """

    def __init__(self, client: Client) -> None:
        self._client = client

    def submit(
        self,
        key: str,
        *,
        env: Optional[Mapping[str, str]] = None,
        secret_env: Optional[Mapping[str, str]] = None,
        files: Optional[Mapping[str, str]] = None,
        image: Optional[str] = None,
        command: Optional[Iterable[str]] = None,
        args: Optional[Iterable[str]] = None,
        cpu: Optional[str] = None,
        memory: Optional[str] = None,
        resources: Optional[Mapping[str, str]] = None,
        node_selector: Optional[Mapping[str, str]] = None,
        retries: int = 0,
        deadline: Optional[str] = None,
        array: Optional[Mapping[str, Any]] = None,
        after: Optional[Mapping[str, str]] = None,
        group: Optional[str] = None,
    ) -> Task:
        """Adds a task, and returns its state.

        `key`: at most 63 letters, digits, `-`, `_` and `.`. `env`: variables of the main container.
        `secret_env`: the same, whose values are kept in a Secret. `files`: read-only files of that container, kept there
        too: absolute paths and texts.
        `image`, `command`, `args`: in place of those of the template. `cpu`, `memory`: request and limit, for example
        `500m` and `2Gi`. `resources`: those of other resources, by name. `node_selector`: labels that the node must have.
        `retries`: how many failures lead to another attempt, at most 100. `deadline`: how long an attempt may take, for
        example `10m`. `array`: its `name` and `index`, and how many of the array may run at a time (`max`). `after`: the
        tasks and whole arrays that must have ended before, by key or name: `ok` or `any`.
        """
        fields: Dict[str, Any] = {
            "env": None if env is None else dict(env),
            "secret_env": None if secret_env is None else dict(secret_env),
            "files": None if files is None else dict(files),
            "image": image,
            "command": None if command is None else list(command),
            "args": None if args is None else list(args),
            "cpu": cpu,
            "memory": memory,
            "resources": None if resources is None else dict(resources),
            "node_selector": None if node_selector is None else dict(node_selector),
            "deadline": deadline,
            "array": None if array is None else dict(array),
            "after": None if after is None else dict(after),
        }
        given = {name: value for name, value in fields.items() if value is not None}
        task = {"key": key, "retries": retries, **given}
        return self.submit_all([task], group=group)[0]

    def submit_all(self, tasks: Iterable[Mapping[str, Any]], *, group: Optional[str] = None) -> List[Task]:
        """Adds several tasks by one call, all of them or none. Each is a mapping with the names of `submit`."""
        answer = self._client.call("POST", self._path(group), {"executors": [dict(task) for task in tasks]})
        return [Task.of(task) for task in answer["executors"]]

    def get(self, key: str, *, group: Optional[str] = None) -> Task:
        """The state of a task. `Refused` has the status 404 if there is none, or posse has forgotten it."""
        return Task.of(self._client.call("GET", self._path(group, key)))

    def cancel(self, key: str, *, group: Optional[str] = None) -> Task:
        """Ends a task and its executor. One that has ended stays as it is."""
        return Task.of(self._client.call("DELETE", self._path(group, key)))

    def retry(self, key: str, *, group: Optional[str] = None) -> Task:
        """Runs a task again that failed, was cancelled or was skipped. An open one stays as it is."""
        return Task.of(self._client.call("POST", self._path(group, key)))

    def list(self, *, group: Optional[str] = None) -> List[Task]:
        """The open tasks, and the ended ones that posse remembers: the last 20,000 of the run."""
        return [Task.of(task) for task in self._client.call("GET", self._path(group))["executors"]]

    def _path(self, group: Optional[str], key: Optional[str] = None) -> str:
        path = self._client._group_path(group) + "/executors"
        return path if key is None else path + "/" + quote(key, safe="")


def _read(answer: http.client.HTTPResponse) -> Iterator[Event]:
    """The events of an answer until it ends or breaks. A line that is cut off is left out."""
    try:
        while True:
            line = answer.readline(LINE_BYTES_MAX)
            if not line.endswith(b"\n"):
                return
            if line.strip():
                yield Event.of(json.loads(line))
    except (OSError, http.client.HTTPException):
        return
    finally:
        answer.close()


def _brief(group: Group) -> str:
    why = f", waiting: {group.waiting}" if group.waiting else ""
    said = f" ({group.message})" if group.message else ""
    return f"{group.name} has {group.running} of {group.target}{why}{said}"


class Losses:
    """The executors that a driver has to give up, from the time when this was made, or the run's start."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._last: Optional[Event] = None
        self._told: Set[int] = set()

    def take(self, known: Iterable[int]) -> List[Loss]:
        """The executors that are gone since the last call, each once.

        `known`: the executors that the driver believes to be there. If events are gone for good (posse was restarted, or
        this is called too seldom), those of them that posse does not have any more are in the answer, with the
        reason `not listed`.
        """
        lost: Dict[int, Loss] = {}  # the first that is told of each
        last = self._last
        for event in self._client.events(follow=False, after=last):
            if event.name in ("missed", "restarted"):
                self._client.wait_ready()  # before that posse has not listed its executors
                there = self._client.status().executors
                live = {id for id, one in there.items() if one.state in LIVE}
                for id in known:
                    if id not in live:
                        lost.setdefault(id, Loss(id, "not listed", False))
            if event.executor is not None and event.name in ("executor_lost", "executor_deleted"):
                reason = event.fields.get("reason") or event.fields.get("cause") or "deleted"
                lost.setdefault(event.executor, Loss(event.executor, reason, bool(event.fields.get("caused_by_app"))))
            last = None if event.name == "restarted" else event
        # Only now: after a failure the next call reads these events again.
        self._last = last
        # After a restart one may be missing in the list, and posse tells its loss again.
        new = [loss for id, loss in lost.items() if id not in self._told]
        self._told.update(lost)
        return new
