// The page of a run of posse. It reads v1/history for the state and follows v1/events for the moment when
// something changes. All text of others goes through textContent.
"use strict";

const POLL_MS = 2000;
// After an event, the next read of the history comes this much later, with what happens until then.
const REFRESH_MS = 400;
// The server sends at least an empty line every 15 s.
const SILENCE_MS = 40000;
const EVENTS_SHOWN = 200;
const SAMPLES_KEPT = 4096;
const NODES_SHOWN = 50;
const TASKS_SHOWN = 500;
const PRIORS_SHOWN = 3;
// In characters. Nobody reads more in a page.
const OUTPUT_SHOWN = 100000;
// A run may have 20,000 tasks.
const TASKS_MS = 5000;
// So many bars nobody sees at once without the overview.
const OVERVIEW_MIN = 30;
const SVG = "http://www.w3.org/2000/svg";

let run;
let view = {text: "", state: "all", group: "", range: 0, order: "newest", active: null, list: []};

function reset() {
  run = {id: null, version: 0, seen: 0, at: Date.now(), answer: null, executors: new Map(), samples: [],
         events: [], nEvents: 0, nLost: 0, stop: null, tasks: [], tasksAt: 0};
  built = {};
}

// ---- words

const when = ms => run.answer.start + ms;
const now = () => run.answer.now + (isLive() ? Date.now() - run.at : 0);

// A class for the colour, which is also what the state filter chooses by.
function kind(one) {
  if (one.end) {
    if (one.end.how === "completed") return "completed";
    if (one.end.how !== "lost") return "ended";
    return one.end.budget ? `lost-${one.end.budget}` : "lost";
  }
  if (one.state === "running") return "running";
  if (one.state === "failed") return "lost";
  return one.state === "requested" || one.state === "pending" ? "starting" : "ending";
}

function label(one) {
  if (!one.end) return one.state;
  return one.end.how === "completed" ? "completed" : `${one.end.how}: ${words(one.end.reason)}`;
}

// ---- the document

function showNames() {
  const {app, instance, namespace, driver_page: own} = run.answer;
  const [running, wanted] = [sum("running"), sum("wanted")];
  $("app").textContent = app;
  $("names").textContent = `namespace ${namespace}, instance ${instance}, run ${run.id}`;
  $("driver-page").hidden = !own;
  if (own) $("driver-page").href = own.startsWith(":")
    ? Object.assign(new URL("/", location.href), {protocol: "http:", port: own.slice(1)}) : own;
  document.title = `${running}/${wanted} ${app} - posse`;
}

const amount = new Intl.NumberFormat("en", {maximumFractionDigits: 2});
const used = one => one && `${amount.format(one.cpu_milli / 1000)} CPU, ${amount.format(one.memory / 2 ** 30)} GiB`;

const sum = name => run.answer.groups.reduce((n, group) => n + group[name], 0);

function showWaits() {
  const {groups, outage, avoided_nodes: nodes} = run.answer;
  // A full window of requests is the normal pace, not a reason that a person could act on.
  const waiting = groups.filter(group => group.waiting && group.waiting !== "in_flight");
  const time = text => text && clock(Date.parse(text));
  const shown = [outage, nodes, waiting.map(one => [one.group, one.waiting, one.since, one.until, one.message, one.would_create, one.would_end, one.limits])];
  const changed = rebuild($("waits"), shown, () => {
    const parts = [];
    if (outage) {
      parts.push(make("div", {className: "wait out"},
        make("strong", {textContent: `The API server does not answer since ${time(outage.since)}.`}),
        " posse tries again. What runs is not affected.", make("blockquote", {textContent: outage.message})));
    }
    for (const group of waiting) {
      const until = group.until ? `, until ${time(group.until)}` : "";
      const node = make("div", {className: "wait"},
        make("strong", {textContent: `Group ${group.group} waits for ${group.waits_for || words(group.waiting)}`}),
        ` since ${time(group.since)}${until}.`, group.explanation ? ` (${group.explanation})` : "");
      for (const [what, wanted] of [["create", group.would_create], ["end", group.would_end]]) {
        const limits = group.limits.filter(limit => limit.what === what).map(limit => `at most ${limit.at_most}`
          + `${limit.of === wanted ? "" : ` of ${limit.of}`} by ${limit.waiting}${limit.until ? ` until ${time(limit.until)}` : ""}`);
        if (limits.length) node.append(` Would ${what} ${wanted}: ${limits.join(", ")}.`);
      }
      const others = group.limits.filter(limit => limit.what === "start" && limit.waiting !== group.waiting);
      if (others.length) node.append(` Also waits for ${others.map(limit => words(limit.waiting)).join(", ")}.`);
      if (group.message) node.append(make("blockquote", {textContent: group.message}));
      parts.push(node);
    }
    const avoided = Object.entries(nodes);
    if (avoided.length) {
      const list = avoided.map(([node, until]) => `${node} until ${time(until)}`).join(", ");
      parts.push(make("p", {className: "soft", textContent: `New executors avoid nodes: ${list}`}));
    }
    if (!outage && !waiting.length) parts.unshift(make("p", {textContent: "Nothing waits."}));
    return parts;
  });
  if (changed) announce([outage ? "The API server does not answer." : "",
    ...waiting.map(one => `Group ${one.group} waits for ${one.waits_for || words(one.waiting)}.`)].join(" "));
}

function showGroups() {
  const always = ["group", "target", "running"];
  const others = ["wanted", "requested", "pending", "draining", "terminating", "failed", "completed"].filter(name => name === "wanted" ? sum(name) > sum("target") : sum(name));
  const columns = [...always, ...others];
  const rows = run.answer.groups.map(group => columns.map(name => group[name]));
  rebuild($("groups"), [columns, rows], () => [table(
    columns.map(name => [name === "failed" ? "failed, kept" : name, name === "group" ? "" : "number"]),
    rows.map(row => row.map(cell => typeof cell === "number" ? number.format(cell) : cell)))]);
}

// ---- the chart

const starts = () => view.range ? Math.max(0, now() - view.range) : 0;

function svg(name, properties, text) {
  const node = document.createElementNS(SVG, name);
  for (const [key, value] of Object.entries(properties)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// Round times between two moments, at most `n`.
function ticks(from, to, n) {
  const steps = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 21600, 43200, 86400];
  const step = 1000 * (steps.find(s => (to - from) / 1000 / s <= n) || 86400 * Math.ceil((to - from) / 864e5 / n));
  const list = [];
  for (let at = Math.ceil(from / step) * step; at < to; at += step) list.push(at);
  return list;
}

function showChart() {
  const chart = $("chart");
  const [width, height, left, bottom, top] = [chart.clientWidth, 180, 48, 20, 10];
  const [from, to] = [starts(), Math.max(now(), starts() + 1000)];
  const before = run.samples.findLastIndex(one => one.at <= from);
  const points = run.samples.slice(Math.max(0, before)).map(one => ({...one, at: Math.max(one.at, from)}));
  const most = points.reduce((n, one) => Math.max(n, one.target, one.running + one.starting), 1);
  const x = at => left + (at - from) / (to - from) * (width - left - 8);
  const y = n => height - bottom - n / most * (height - bottom - top);
  // Each value holds until the next one.
  const line = value => points.map((one, i) =>
    `${i ? "H" + x(one.at).toFixed(1) + "V" : "M" + x(one.at).toFixed(1) + " "}${y(value(one)).toFixed(1)}`).join("") + `H${x(to)}`;
  const area = value => points.length ? `${line(value)}V${y(0)}H${x(points[0].at)}Z` : "";
  const parts = [];
  for (const n of [0, Math.round(most / 2), most].filter((n, i, all) => all.indexOf(n) === i)) {
    parts.push(svg("line", {class: "grid", x1: left, x2: width - 8, y1: y(n), y2: y(n)}),
      svg("text", {x: left - 6, y: y(n) + 4, "text-anchor": "end"}, number.format(n)));
  }
  // Each has room beside the one before and the number at the edge.
  let room = left;
  for (const at of ticks(when(from), when(to), width / 90)) {
    const [place, text] = [x(at - run.answer.start), clock(at).replace(/(:..):00$/, "$1")];
    const half = text.length * 3.5;
    if (place - half < room || place + half > width) continue;
    room = place + half;
    parts.push(svg("text", {x: place, y: height - 5, "text-anchor": "middle"}, text));
  }
  parts.push(svg("path", {class: "starting", d: area(one => one.running + one.starting)}),
    svg("path", {class: "running", d: area(one => one.running)}));
  if (points.length) parts.push(svg("path", {class: "target", d: line(one => one.target)}));
  const lost = new Set();
  for (const one of run.executors.values()) {
    if (one.end && one.end.how === "lost" && one.end.at >= from) lost.add(Math.round(x(one.end.at)));
  }
  for (const at of lost) parts.push(svg("line", {class: "lost", x1: at, x2: at, y1: height - bottom, y2: height - bottom + 5}));
  chart.replaceChildren(...parts);
  chart.onpointerleave = () => { $("readout").textContent = ""; };
  chart.onpointermove = event => {
    const at = from + (event.clientX - chart.getBoundingClientRect().left - left) / (width - left - 8) * (to - from);
    const one = points.findLast(point => point.at <= at);
    $("readout").textContent = one ? `${clock(when(at))}: ${number.format(one.running)} running, ` +
      `${number.format(one.starting)} starting, target ${number.format(one.target)}` : "";
  };
  const starting = sum("requested") + sum("pending");
  const isAll = run.answer.ended <= run.answer.ended_kept;
  const usage = Object.values(run.answer.usage);
  const total = name => usage.reduce((n, one) => n + one[name], 0);
  const uses = usage.length ? ` They use ${used({cpu_milli: total("cpu_milli"), memory: total("memory")})}.` : "";
  $("summary").textContent = `${number.format(sum("running"))} of ${number.format(sum("wanted"))} running` +
    `${starting ? `, ${number.format(starting)} starting` : ""}. Lost since ${clock(run.answer.start)}: ` +
    `${isAll ? "" : "at least "}${number.format(run.nLost)}.${uses}`;
}

// ---- the executors

const STATES = [["all", "all"], ["live", "not ended"], ["starting", "starting"], ["running", "running"],
  ["ending", "ending"], ["lost", "lost"], ["lost-app", "lost, budget app"], ["lost-cluster", "lost, budget cluster"],
  ["lost-start", "lost, budget start"], ["completed", "completed"], ["ended", "ended by posse"]];
const RANGES = [[0, "whole run"], [864e5, "last day"], [36e5, "last hour"], [6e5, "last 10 min"], [6e4, "last minute"]];
const ORDERS = [["newest", "newest first"], ["oldest", "oldest first"], ["node", "by node"], ["start", "slowest start"]];
const COLUMNS = [["id", "Executor"], ["group", "Group"], ["state", "State"], ["bars", "From request to end"],
  ["start", "Started in"], ["ran", "Ran"], ["node", "Node"]];

const startTook = one => one.requested === undefined ? undefined
  : (one.running ?? (one.end ? one.end.at : now())) - one.requested;
const began = one => one.requested ?? one.running ?? one.since;

function choose() {
  const [text, from] = [view.text.trim().toLowerCase(), starts()];
  const fits = one => {
    if (one.end && one.end.at < from) return false;
    if (view.group && one.group !== view.group) return false;
    const found = kind(one);
    const isState = view.state === "all" || view.state === found || (view.state === "live" && !one.end) ||
      (view.state === "lost" && found.startsWith("lost"));
    return isState && (!text || one.words.includes(text));
  };
  const list = [...run.executors.values()].filter(fits);
  const byId = (a, b) => b.id - a.id;
  list.sort({newest: byId, oldest: (a, b) => a.id - b.id,
    node: (a, b) => (a.node || "").localeCompare(b.node || "") || byId(a, b),
    start: (a, b) => (startTook(b) ?? -1) - (startTook(a) ?? -1) || byId(a, b)}[view.order]);
  return list;
}

// The pieces of an executor's bar: from, to, class.
function pieces(one) {
  const [end, first] = [one.end ? one.end.at : now(), began(one)];
  const list = [];
  if (one.running === undefined) list.push([first, end, kind(one) === "ending" ? "ending" : "starting"]);
  else {
    if (one.requested !== undefined) list.push([first, one.running, "starting"]);
    const isEnding = !one.end && kind(one) === "ending";
    list.push([one.running, isEnding ? one.since : end, "running"]);
    if (isEnding) list.push([one.since, end, "ending"]);
  }
  return list;
}

const rowHeight = () => matchMedia("(max-width: 60rem)").matches ? 48 : 28;
const HEAD_HEIGHT = 28;

function row(one, i, from, to) {
  const place = at => Math.min(100, Math.max(0, (at - from) / (to - from) * 100));
  const bar = make("div", {className: "bar"});
  const piece = (left, width, className) => {
    const node = make("i", {className});
    [node.style.left, node.style.width] = [`${left}%`, width];
    bar.append(node);
  };
  for (const [start, end, name] of pieces(one)) {
    if (end >= from) piece(place(start), `${place(end) - place(start)}%`, name);
  }
  if (one.end) piece(Math.min(99.5, place(one.end.at)), "", `cap ${kind(one)}`);
  const took = startTook(one);
  const cells = {id: one.id, group: one.group, state: label(one), bars: bar,
    start: one.running === undefined || took === undefined ? "" : span(took),
    ran: one.running === undefined ? "" : span((one.end ? one.end.at : now()) - one.running), node: one.node || ""};
  const node = make("div", {id: `row-${one.id}`, role: "row", className: one.id === view.active ? "active" : "",
    "aria-rowindex": i + 2, "aria-selected": one.id === view.active},
    ...COLUMNS.map(([name]) => {
      const cell = make("div", {role: "gridcell", className: name === "state" ? `state key ${kind(one)}` : name});
      cell.append(cells[name]);
      return cell;
    }));
  node.style.top = `${i * rowHeight()}px`;
  node.onclick = () => { view.active = one.id; showDetail(true); showRows(); };
  return node;
}

// Only the rows in sight are in the document.
function showRows() {
  const [grid, list, height] = [$("grid"), view.list, rowHeight()];
  const [from, to] = [starts(), Math.max(now(), starts() + 1)];
  const first = Math.max(0, Math.floor(grid.scrollTop / height) - 3);
  const last = Math.min(list.length, Math.ceil((grid.scrollTop + grid.clientHeight) / height) + 3);
  const rows = list.slice(first, last).map((one, i) => row(one, first + i, from, to));
  if (!list.length) {
    rows.push(make("div", {role: "row"}, make("div", {role: "gridcell", className: "empty",
      textContent: run.executors.size ? "No executor fits the filter." : "There is no executor yet."})));
  }
  $("rows").replaceChildren(...rows);
  const axis = $("columns").querySelector(".bars");
  rebuild(axis, [clock(when(from)), clock(when(to))], () => ["From request to end", `${clock(when(from))} to ${clock(when(to))}`]
    .map(textContent => make("span", {textContent})));
  grid.setAttribute("aria-rowcount", list.length + 1);
  const isThere = $(`row-${view.active}`);
  if (isThere) grid.setAttribute("aria-activedescendant", `row-${view.active}`);
  else grid.removeAttribute("aria-activedescendant");
}

// All bars in one picture: several executors share a line of pixels, and ends are drawn last.
function showOverview() {
  const [canvas, list] = [$("overview"), view.list];
  canvas.hidden = list.length <= OVERVIEW_MIN;
  if (canvas.hidden) return;
  const [width, height] = [canvas.width = canvas.clientWidth, canvas.height = canvas.clientHeight];
  const [paint, styles] = [canvas.getContext("2d"), getComputedStyle(document.documentElement)];
  const colour = name => styles.getPropertyValue(`--${name}`);
  const [from, to] = [starts(), Math.max(now(), starts() + 1)];
  const x = at => Math.max(0, (at - from) / (to - from) * width);
  const line = Math.max(1, height / list.length);
  const fill = (i, start, end) => paint.fillRect(x(start), i / list.length * height, Math.max(1, x(end) - x(start)), line);
  for (const name of ["starting", "running", "ending"]) {
    paint.fillStyle = colour(name);
    list.forEach((one, i) => pieces(one).forEach(([start, end, piece]) => piece === name && fill(i, start, end)));
  }
  for (const name of ["completed", "ended", "lost", "lost-start", "lost-cluster", "lost-app"]) {
    paint.fillStyle = colour(name);
    list.forEach((one, i) => {
      if (one.end && kind(one) === name) paint.fillRect(x(one.end.at) - 2, i / list.length * height, 3, Math.max(2, line));
    });
  }
}

function showExecutors() {
  const [grid, height, before] = [$("grid"), rowHeight(), view.list];
  view.list = choose();
  $("rows").style.height = `${Math.max(1, view.list.length) * height}px`;
  // Rows that somebody looks at stay where they are when others come before them.
  const first = before[Math.floor(grid.scrollTop / height)];
  const at = grid.scrollTop > 0 && first ? view.list.indexOf(run.executors.get(first.id)) : -1;
  if (at >= 0) grid.scrollTop = at * height + grid.scrollTop % height;
  const groups = run.answer.groups.map(group => group.group);
  options($("group"), [["", "all"], ...groups.map(name => [name, name])], view.group);
  $("grid").classList.toggle("one", groups.length < 2);
  $("filter").elements.group.parentElement.hidden = groups.length < 2;
  const found = `${number.format(view.list.length)} of ${plural(run.executors.size, "executor")}`;
  if ($("found").textContent !== found) $("found").textContent = found;
  showRows();
  showOverview();
  showDetail(false);
}

function showDetail(isNew) {
  const one = run.executors.get(view.active);
  const end = one && one.end;
  const facts = !one ? [] : [["Executor", one.id], ["Pod", run.answer.pod_prefix + one.id], ["Group", one.group],
    ["State", label(one)], ["Node", one.node], ["Requested", one.requested === undefined ? "before this process" : clock(when(one.requested))],
    ["Running", one.running === undefined ? undefined : clock(when(one.running))],
    ["Ended", end ? clock(when(end.at)) : undefined], ["Budget", end && end.budget],
    ["Uses", used(run.answer.usage[one.id])], ["Exit code", end ? end.exit_code : undefined], ["Message", end && end.message]]
    .filter(([, value]) => value !== undefined && value !== null && value !== "");
  rebuild($("detail"), facts, () => !one ? [] : [
    make("dl", {}, ...facts.flatMap(([name, value]) => [make("dt", {textContent: name}), make("dd", {textContent: value})])),
    make("p", {}, "In a terminal: ", make("code", {textContent: `posse explain --app ${run.answer.app} ${one.id}`}))]);
  if (isNew && one) $("detail").scrollIntoView({block: "nearest"});
}

function move(event) {
  const page = Math.max(1, Math.floor(($("grid").clientHeight - HEAD_HEIGHT) / rowHeight()) - 1);
  const list = view.list;
  const steps = {ArrowDown: 1, ArrowUp: -1, PageDown: page, PageUp: -page, Home: -list.length, End: list.length};
  if (event.key === "Escape") view.active = null;
  else if (event.key === "Enter" || event.key === " ") showDetail(true);
  else if (event.key in steps && list.length) {
    const at = list.findIndex(one => one.id === view.active);
    const next = at < 0 ? 0 : Math.min(list.length - 1, Math.max(0, at + steps[event.key]));
    view.active = list[next].id;
    showRow(next);
  } else return;
  event.preventDefault();
  showRows();
  showDetail(false);
}

function showRow(i) {
  const [grid, height] = [$("grid"), rowHeight()];
  const room = grid.clientHeight - HEAD_HEIGHT - height;
  grid.scrollTop = Math.min(i * height, Math.max(grid.scrollTop, i * height - room));
}

// ---- tasks

// Those that somebody may wait for come first.
const TASK_STATES = ["running", "pending", "waiting", "held", "failed", "cancelled", "skipped", "succeeded"];

const byKey = new Intl.Collator("en", {numeric: true}).compare;

// What the task changes of its group's pod.
function shape(task) {
  const amounts = {cpu: task.cpu, memory: task.memory, ...task.resources, ...task.node_selector};
  return [task.image, ...Object.entries(amounts).map(([name, value]) => value && `${name} ${value}`)].filter(part => part).join(", ");
}

function order(task) {
  const after = Object.entries(task.after || {}).map(([key, how]) => how === "ok" ? key : `${key} (any end)`).sort(byKey);
  return after.slice(0, PRIORS_SHOWN).join(", ") + (after.length > PRIORS_SHOWN ? `, and ${after.length - PRIORS_SHOWN} more` : "");
}

function showTasks() {
  const [open, ended] = [sum("open_tasks"), sum("ended_tasks")];
  $("tasks").hidden = !open && !ended;
  const count = `${number.format(open)} open, ${number.format(ended)} ended`;
  if ($("task-count").textContent !== count) $("task-count").textContent = count;
  const place = task => TASK_STATES.indexOf(task.state);
  const shown = [...run.tasks].sort((a, b) => place(a) - place(b) || byKey(a.key, b.key)).slice(0, TASKS_SHOWN);
  const why = task => [task.reason && words(task.reason), task.exit_code === null ? "" : `exit code ${task.exit_code}`, task.message]
    .filter(part => part).join(", ");
  rebuild($("task-rows"), [shown, run.tasks.length], () => [
    table([["task"], ["state"], ["group"], ["shape"], ["after"], ["executor", "number"], ["attempts", "number"], ["result", "message"]],
      shown.map(task => [action(task.key, () => showOutput(task)), words(task.state), task.group, shape(task), order(task),
        task.executor ? String(task.executor) : "", number.format(task.attempts), why(task)])),
    make("p", {className: "soft", textContent: run.tasks.length > shown.length ? `The first ${number.format(shown.length)} of ${number.format(run.tasks.length)}.` : ""})]);
}

// The end of what an ended task has printed. posse reads that of an open one from its pod, in a terminal.
async function showOutput(task) {
  const path = `v1/groups/${encodeURIComponent(task.group)}/executors/${encodeURIComponent(task.key)}/output`;
  const text = await call(path, AbortSignal.timeout(ANSWER_MS)).then(answer => answer.text()).catch(error => error);
  const lines = text instanceof Error ? make("p", {textContent: `${text.message}.`})
    : make("pre", {className: "scroll", tabIndex: 0, textContent: text.slice(-OUTPUT_SHOWN) || "It has printed nothing."});
  $("task-output").replaceChildren(make("h3", {textContent: `Output of ${task.key}`}), lines,
    make("p", {}, "In a terminal: ", make("code", {textContent: `posse task logs ${task.key} --app ${run.answer.app}`})));
  $("task-output").scrollIntoView({block: "nearest"});
}

// Reads them only while somebody looks at them.
async function readTasks() {
  if (!$("task-list").open || document.hidden || Date.now() - run.tasksAt < TASKS_MS) return;
  const asked = run;
  asked.tasksAt = Date.now();
  const groups = run.answer.groups.filter(group => group.open_tasks || group.ended_tasks);
  const lists = await Promise.all(groups.map(async ({group}) => {
    const answer = await call(`v1/groups/${encodeURIComponent(group)}/executors?observe=true`, AbortSignal.timeout(ANSWER_MS));
    return (await answer.json()).executors.map(task => ({...task, group}));
  }));
  asked.tasks = lists.flat();
  draw();
}

// ---- losses and events

function showLosses() {
  const lost = [...run.executors.values()].filter(one => one.end && one.end.how === "lost");
  const [reasons, nodes] = [new Map(), new Map()];
  for (const one of lost) {
    const {reason, budget, at} = one.end;
    const entry = reasons.get(reason) || {n: 0, budget, last: one};
    entry.n += 1;
    if (at >= entry.last.end.at) entry.last = one;
    reasons.set(reason, entry);
    const name = one.node || "";
    const node = nodes.get(name) || {n: 0, reasons: new Map()};
    node.n += 1;
    node.reasons.set(reason, (node.reasons.get(reason) || 0) + 1);
    nodes.set(name, node);
  }
  run.nLost = lost.length;
  const {ended, ended_kept: kept} = run.answer;
  $("kept").textContent = !ended ? "No executor has ended."
    : `${plural(ended, "executor")} ended.` + (ended > kept ? ` The last ${number.format(kept)} are listed here and above.` : "");
  const most = map => [...map].sort((a, b) => b[1].n - a[1].n);
  const shown = [lost.length, lost.reduce((at, one) => Math.max(at, one.end.at), 0)];
  const changed = rebuild($("losses"), shown, () => !lost.length ? [make("p", {textContent: "No executor was lost."})] : [
    make("h3", {textContent: "By reason"}),
    make("div", {className: "scroll", tabIndex: 0, role: "region", "aria-label": "Losses by reason"},
      table([["reason"], ["losses", "number"], ["budget"], ["last"], ["message of the last one", "message"]],
        most(reasons).map(([reason, one]) => [finder(reason, words(reason)), number.format(one.n), one.budget || "none",
          clock(when(one.last.end.at)), one.last.end.message]))),
    make("h3", {textContent: `By node${nodes.size > NODES_SHOWN ? `: the first ${NODES_SHOWN} of ${nodes.size}` : ""}`}),
    make("div", {className: "scroll", tabIndex: 0, role: "region", "aria-label": "Losses by node"},
      table([["node"], ["losses", "number"], ["reasons"]],
        most(nodes).slice(0, NODES_SHOWN).map(([name, one]) => [name ? finder(name, name) : "no node",
          number.format(one.n), [...one.reasons].sort((a, b) => b[1] - a[1]).map(([reason, n]) => `${words(reason)} ${n}`).join(", ")])))]);
  if (changed && lost.length) announce(`${number.format(lost.length)} executors were lost.`);
}

// Shows the losses with this text above.
function finder(text, shown) {
  return action(shown, () => {
    Object.assign(view, {text, state: "lost"});
    [$("find").value, $("state").value] = [text, "lost"];
    showExecutors();
    $("grid").focus();
    $("executors-title").scrollIntoView();
  });
}

function describe(event) {
  const parts = [];
  if (event.executor) parts.push(`executor ${event.executor}`);
  if (event.group) parts.push(`group ${event.group}`);
  for (const name of ["key", "outcome", "for", "reason", "cause", "budget", "target", "memory", "count", "node"]) {
    if (event[name] !== undefined && event[name] !== null) parts.push(`${name === "key" ? "task" : name} ${["key", "node"].includes(name) ? event[name] : words(String(event[name]))}`);
  }
  if (event.exit_code) parts.push(`exit code ${event.exit_code}`);
  if (!event.executor && event.pod) parts.push(`pod ${event.pod}`);
  const message = event.message || (event.log || []).join("\n");
  return parts.join(", ") + (message ? `${parts.length ? ": " : ""}${message.slice(0, 2000)}` : "");
}

function showEvents() {
  rebuild($("events"), [run.nEvents], () => run.events.map(event => make("li", {},
    make("span", {textContent: clock(Date.parse(event.time))}), make("strong", {textContent: words(event.event)}),
    make("span", {textContent: describe(event)}))));
}

// ---- drawing

let isDue = false;

function draw() {
  if (isDue || !run.answer) return;
  isDue = true;
  requestAnimationFrame(() => {
    isDue = false;
    if (!run.answer) return;
    $("content").hidden = false;
    for (const show of [showNames, showWaits, showLosses, showChart, showGroups, showExecutors, showTasks, showEvents]) show();
  });
}

// ---- the connection

async function refresh() {
  const query = run.id ? `?since=${run.version}&run=${run.id}` : "";
  const asked = run;
  const answer = await (await call(`v1/history${query}`, AbortSignal.timeout(ANSWER_MS))).json();
  if (asked !== run) return;
  if (!run.id) run.seen = Math.max(0, answer.newest_event - EVENTS_SHOWN);
  Object.assign(run, {id: answer.run, version: answer.version, at: Date.now(), answer});
  for (const one of answer.executors) {
    const end = one.end || {};
    one.words = [one.id, run.answer.pod_prefix + one.id, one.group, one.node, label(one), end.reason, end.message].join("\n").toLowerCase();
    run.executors.set(one.id, one);
    // The server refused it, and posse took its create back: it never was.
    if (end.how === "gone") run.executors.delete(one.id);
  }
  // posse keeps the last ones, so the page does the same.
  const ended = [...run.executors.values()].filter(one => one.end).sort((a, b) => a.end.at - b.end.at);
  for (const one of ended.slice(0, -answer.ended_kept)) run.executors.delete(one.id);
  run.samples.push(...answer.samples);
  run.samples.sort((a, b) => a.at - b.at);
  if (run.samples.length > SAMPLES_KEPT) run.samples = run.samples.filter((_, i) => i % 2);
  draw();
  await readTasks().catch(() => {});
}

let refreshTimer = null;

// Reads the history soon; events until then share the request.
function refreshSoon(ms) {
  if (refreshTimer || document.hidden) return;
  refreshTimer = setTimeout(async () => {
    // The stream of events would notice a lost connection only when the server is silent for too long. Its last
    // events may still be on their way.
    const {stop} = run;
    await refresh().catch(() => setTimeout(() => stop?.abort(), REFRESH_MS));
    refreshTimer = null;
  }, ms);
}

// The last event of a run. After it the connection may end in any way.
const isOver = () => run.events[0]?.event === "stopped";

// Follows the events until the connection ends.
async function follow(onByte) {
  const stop = run.stop = new AbortController();
  let heard = Date.now();
  const watchdog = setInterval(() => Date.now() - heard > SILENCE_MS && stop.abort(), 1000);
  try {
    const answer = await call(`v1/events?follow=true&after=${run.seen}&run=${run.id}`, stop.signal);
    const reader = answer.body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    for (;;) {
      const {value, done} = await reader.read();
      if (done) return;
      heard = Date.now();
      onByte();
      const lines = (rest + value).split("\n");
      rest = lines.pop();
      const events = lines.filter(line => line).map(line => JSON.parse(line));
      if (!events.length) continue;
      run.seen = events.at(-1).seq;
      run.nEvents += events.length;
      run.events = [...events.reverse(), ...run.events].slice(0, EVENTS_SHOWN);
      refreshSoon(REFRESH_MS);
    }
  } finally {
    clearInterval(watchdog);
    stop.abort();
  }
}

async function connect() {
  let [delay, since, why] = [RETRY_MIN_MS, null, ""];
  const isConnected = () => {
    [delay, since] = [RETRY_MIN_MS, null];
    if (!isLive()) showLink("live", "Live");
  };
  for (;;) {
    try {
      await refresh();
      isConnected();
      draw();
      why = "";
      await follow(isConnected);
    } catch (error) {
      why = error instanceof Refused ? error.message : "";
      if (error.status === 401) {
        await login(Boolean(token));
        continue;
      }
      if (error.status === 409) {
        reset();
        announce("Another run has begun.");
        continue;
      }
    }
    since ??= Date.now();
    if (isOver()) showLink("over", "The run is over. This is its last state.");
    else showLink("cut", `Not connected since ${clock(since)}${why ? `: ${why}` : ""}`);
    if (run.answer) draw();
    await pause(delay * (0.75 + Math.random() / 2), since);
    delay = Math.min(RETRY_MAX_MS, delay * 2);
  }
}

// ---- the start

function begin() {
  reset();
  document.body.dataset.link = "wait";
  $("columns").append(...COLUMNS.map(([name, title]) => make("div", {id: `column-${name}`, role: "columnheader", className: name, textContent: title})));
  $("columns").setAttribute("aria-rowindex", 1);
  for (const [id, list] of [["state", STATES], ["range", RANGES], ["order", ORDERS]]) {
    options($(id), list, view[id]);
    $(id).onchange = () => { view[id] = id === "range" ? Number($(id).value) : $(id).value; draw(); };
  }
  $("group").onchange = () => { view.group = $("group").value; draw(); };
  $("find").oninput = () => { view.text = $("find").value; $("grid").scrollTop = 0; draw(); };
  $("filter").onsubmit = event => event.preventDefault();
  $("task-list").ontoggle = () => { run.tasksAt = 0; readTasks().catch(() => {}); };
  $("grid").onkeydown = move;
  $("grid").onscroll = () => run.answer && showRows();
  $("overview").onclick = event => {
    const share = event.offsetY / $("overview").clientHeight;
    $("grid").scrollTop = share * view.list.length * rowHeight() - $("grid").clientHeight / 2;
  };
  new ResizeObserver(draw).observe($("chart"));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", draw);
  document.addEventListener("visibilitychange", () => isLive() && refreshSoon(0));
  setInterval(() => {
    if (!isLive() || !run.answer) return;
    refreshSoon(0);
    draw();
  }, POLL_MS);
  connect();
}

begin();
