"""What posse answers, as values. Fields that a newer posse adds are ignored here, and stay in `raw`."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, List, Mapping, Optional


@dataclass(frozen=True)
class Group:
    """One group of executors.

    `target`: how many executors it should have. `counts`: how many it has in each state, by the names of
    docs/CONTROL_API.md (`requested`, `pending`, `running`, `draining`, `terminating`, `failed`), and
    `completed`: how many have done their work, with `restart`. `waiting`: why nothing more is done for it, or None;
    `message`: what the API server says about that, if anything.
    """

    name: str
    target: int
    min: int
    max: Optional[int]
    counts: Mapping[str, int]
    waiting: Optional[str]
    message: Optional[str]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @property
    def running(self) -> int:
        """How many executors run."""
        return self.counts.get("running", 0)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Group:
        """Reads the JSON object of a group."""
        others = ("target", "min", "max", "completions", "attempt", "open_tasks", "ended_tasks")
        counts = {key: n for key, n in raw.items() if isinstance(n, int) and key not in others}
        return cls(
            name=raw["group"],
            target=raw["target"],
            min=raw["min"],
            max=raw["max"],
            counts=counts,
            waiting=raw["waiting"],
            message=raw["message"],
            raw=raw,
        )


@dataclass(frozen=True)
class Executor:
    """One executor. `slot` is its rank from 0, `ready` whether it runs and its pod is ready, `since` an RFC 3339 time:
    when it entered its state, `key` that of the task that it works on, or None."""

    id: int
    group: str
    slot: Optional[int]
    pod: str
    uid: Optional[str]
    state: str
    node: Optional[str]
    ip: Optional[str]
    host_ip: Optional[str]
    ready: bool
    since: str
    key: Optional[str]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Executor:
        """Reads the JSON object of an executor."""
        names = ("id", "group", "slot", "pod", "uid", "state", "node", "ip", "since")
        # An older posse does not tell the address of the node, and which executors are ready.
        added: Dict[str, Any] = {"host_ip": raw.get("host_ip"), "ready": bool(raw.get("ready")), "key": raw.get("key")}
        return cls(**{name: raw[name] for name in names}, **added, raw=raw)


@dataclass(frozen=True)
class Status:
    """The state of a run. `groups` is by name, `executors` by id. `outage` says since when the API server has not
    answered (`since`, `message`), or is None."""

    run: str
    app: str
    instance: str
    namespace: str
    groups: Dict[str, Group]
    executors: Dict[int, Executor]
    avoided_nodes: Mapping[str, str]
    outage: Optional[Mapping[str, str]]
    raw: Mapping[str, Any] = field(repr=False, compare=False)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Status:
        """Reads the JSON object of a status."""
        groups = [Group.of(group) for group in raw["groups"]]
        executors = [Executor.of(executor) for executor in raw["executors"]]
        return cls(
            run=raw["run"],
            app=raw["app"],
            instance=raw["instance"],
            namespace=raw["namespace"],
            groups={group.name: group for group in groups},
            executors={executor.id: executor for executor in executors},
            avoided_nodes=raw.get("avoided_nodes") or {},
            outage=raw.get("outage"),
            raw=raw,
        )


@dataclass(frozen=True)
class Task:
    """A task: work that runs once, in an executor of its own. `state` is `held`, `waiting`, `pending` or `running`, and
    in the end `succeeded`, `failed`, `cancelled` or `skipped`. `executor`: the id of the one that works or worked on it
    last, or None. `attempts`: how many pods have worked on it. `exit_code` and `reason` are None while it is open;
    `reason` says why it failed, and `message` says more, or what holds it."""

    key: str
    state: str
    executor: Optional[int]
    attempts: int
    exit_code: Optional[int]
    reason: Optional[str]
    message: Optional[str] = None

    @property
    def has_ended(self) -> bool:
        """True if nothing more happens to it."""
        return self.state in ("succeeded", "failed", "cancelled", "skipped")

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Task:
        """Reads the JSON object of a task."""
        names = ("key", "state", "executor", "attempts", "exit_code", "reason")
        return cls(**{name: raw[name] for name in names}, message=raw.get("message"))


@dataclass(frozen=True)
class Killed:
    """The answer to a kill. `killed`: these end now. `busy`: spared, because they work. `unknown`: there are none.
    `target`: the target of their group then; None if they belong to several groups."""

    killed: List[int]
    busy: List[int]
    unknown: List[int]
    target: Optional[int]


@dataclass(frozen=True)
class Loss:
    """An executor that is gone. `reason`: one of docs/CONTROL_API.md, or `not listed` if there was no event of it.
    `caused_by_app`: the application ended it, and not the cluster."""

    executor: int
    reason: str
    caused_by_app: bool


@dataclass(frozen=True)
class Event:
    """One event. `name` is one of docs/CONTROL_API.md, `time` is RFC 3339, `fields` has everything that the event
    says. `executor` and `group` are None if the event is not about one.

    Two names need an answer: `missed` and `restarted` say that events are gone for good, so take from
    `Client.status()` what you did not hear. posse sends `missed` if you read too slowly; `restarted` comes from this
    client, after posse was started again.
    """

    name: str
    run: str
    seq: int
    time: str
    executor: Optional[int]
    group: Optional[str]
    fields: Mapping[str, Any] = field(repr=False)

    @classmethod
    def of(cls, raw: Mapping[str, Any]) -> Event:
        """Reads the JSON object of an event."""
        return cls(
            name=raw["event"],
            run=raw["run"],
            seq=raw["seq"],
            time=raw["time"],
            executor=raw.get("executor"),
            group=raw.get("group"),
            fields=raw,
        )
