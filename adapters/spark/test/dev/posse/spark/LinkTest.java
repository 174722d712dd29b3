package dev.posse.spark;

import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.CopyOnWriteArrayList;
import java.util.concurrent.atomic.AtomicBoolean;

import com.fasterxml.jackson.databind.node.ObjectNode;

/** Calls to posse, and reports to Spark. */
final class LinkTest {
  private static final String PUT = "PUT /v1/groups/0";

  private LinkTest() {}

  static void all() throws Exception {
    refusals();
    wrongAddress();
    otherVersion();
    losses();
    recovers();
    images();
    endings();
    missed();
    page();
    targets();
    nodes();
    kills();
    anotherRun();
    end();
  }

  private static final class Engine implements Link.Engine {
    final List<String> executors = new CopyOnWriteArrayList<>();
    final List<String> lost = new CopyOnWriteArrayList<>();
    final List<String> told = new CopyOnWriteArrayList<>();
    /** Whether Spark decommissions executors that will end. */
    volatile boolean decommissions;
    /** Whether the next executor without memory changes the templates. */
    final AtomicBoolean recovers = new AtomicBoolean(true);
    /** That of Spark's container; null: the template has no containers. */
    String image;
    String page = "";

    @Override
    public ObjectNode group(int profile) {
      ObjectNode group = Control.JSON.createObjectNode().put("template", "of " + profile);
      if (image != null) {
        group.put("container", "spark").putObject("template").putObject("spec").putArray("containers")
            .add(Control.JSON.createObjectNode().put("name", "beside").put("image", "other:1"))
            .add(Control.JSON.createObjectNode().put("name", "spark").put("image", image));
      }
      return group;
    }

    @Override
    public void tell(String line) {
      told.add(line);
    }

    @Override
    public String page() {
      return page;
    }

    @Override
    public List<String> executors() {
      return executors;
    }

    @Override
    public void lost(String executor, int exitCode, boolean causedByApp, String why) {
      lost.add(executor + " " + exitCode + " " + causedByApp + " " + why);
    }

    @Override
    public boolean recover() {
      return recovers.getAndSet(false);
    }

    @Override
    public void ended(String executor, String why) {
      lost.add(executor + " ended " + why);
    }

    @Override
    public boolean decommissions() {
      return decommissions;
    }

    @Override
    public Set<String> takers() {
      return Set.copyOf(executors);
    }

    @Override
    public void ending(String executor, String why) {
      lost.add(executor + " ending " + why);
    }
  }

  private static Link link(FakePosse posse, Engine engine) {
    Link link = new Link(posse.control(), "n", engine);
    link.start(0);
    return link;
  }

  private static void refused(String answer, String... words) throws Exception {
    try (FakePosse posse = new FakePosse()) {
      posse.answers.put(PUT, answer);
      Check.fails(() -> link(posse, new Engine()), words);
    }
  }

  private static void refusals() throws Exception {
    refused("404 {\"error\":\"there is no such call\"}", "too old", "there is no such call");
    refused("405 {}", "too old", "status 405");
    refused("400 {\"error\":\"unknown field template\",\"field\":\"template\"}", "too old");
    refused("400 {\"error\":\"image: no\",\"field\":\"template\"}", "the executors' pod is refused: template: image: no");
    refused("409 {\"error\":\"it ends\"}", "does not take the executors' group: it ends");
    refused("500 this is not JSON", "does not take the executors' group: status 500");
    try (FakePosse posse = new FakePosse()) {
      posse.answers.put("GET /v1/status", "200 {\"run\":\"r\",\"namespace\":\"other\"}");
      Check.fails(() -> link(posse, new Engine()), "posse's namespace is other", "is n: they must be the same");
      posse.answers.put("GET /v1/status", "200 hello");
      Check.fails(() -> link(posse, new Engine()), "does not answer", "is `posse run` running");
      posse.breakToken();
      Check.fails(() -> link(posse, new Engine()), "does not know this token", "spark.posse.control.tokenFile");
    }
  }

  private static void wrongAddress() {
    Control nobody = new Control("unix:/nowhere/at/all", null);
    Check.fails(() -> {
      new Link(nobody, "n", new Engine()).start(0);
      return null;
    }, "unix:/nowhere/at/all", "does not answer", "is `posse run` running");
  }

  /** The jar of another release works, if it does, and the driver's log says in one line that it is one. */
  private static void otherVersion() throws Exception {
    String own = Link.version();
    assert own.matches("[0-9]+\\.[0-9]+\\.[0-9]+.*") : own;
    Map<String, List<String>> lines = Map.of(",\"version\":\"" + own + "\"", List.of(),
        ",\"version\":\"0.0.9\"", List.of("this posse-spark.jar is of posse " + own + ", and the posse that runs is 0.0.9: use the jar"
            + " of its release"),
        // It told its version first in 0.2.0.
        "", List.of("this posse-spark.jar is of posse " + own + ", and the posse that runs is an older one: use the jar of its release"));
    for (Map.Entry<String, List<String>> one : lines.entrySet()) {
      try (FakePosse posse = new FakePosse()) {
        posse.answers.put("GET /v1/status", "200 {\"run\":\"r\",\"namespace\":\"n\"" + one.getKey() + "}");
        Engine engine = new Engine();
        link(posse, engine).end();
        Check.same(engine.told, one.getValue());
      }
    }
  }

  private static String lost(int executor, String reason, String exitCode, boolean causedByApp) {
    return "\"event\":\"executor_lost\",\"executor\":" + executor + ",\"reason\":\"" + reason + "\",\"exit_code\":"
        + exitCode + ",\"caused_by_app\":" + causedByApp + ",\"message\":\"so\"";
  }

  /** After an executor without memory those to come have another template. */
  private static void recovers() throws Exception {
    for (String event : List.of(lost(1, "oom_killed", "137", true), lost(1, "app_error", "52", true))) {
      try (FakePosse posse = new FakePosse()) {
        Engine engine = new Engine();
        Link link = link(posse, engine);
        link.want(Map.of(0, 3));
        Check.comes("the target", () -> posse.calls.contains(PUT + " {\"target\":3}"));
        posse.event(lost(7, "app_error", "137", true));
        posse.event(event);
        Check.comes("the other template", () -> posse.calls.contains(PUT + " {\"template\":\"of 0\",\"target\":3}"));
        posse.event(lost(2, "oom_killed", "137", true));
        Check.comes("three losses", () -> engine.lost.size() == 3);
        link.want(Map.of(0, 4));
        Check.comes("the next target", () -> posse.calls.contains(PUT + " {\"target\":4}"));
        link.end();
      }
    }
  }

  private static void losses() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      // Events before the start do not concern this application.
      posse.event(lost(99, "app_error", "1", true));
      Engine engine = new Engine();
      Link link = link(posse, engine);
      posse.event(lost(1, "app_error", "137", true));
      posse.event(lost(2, "evicted", "null", false));
      posse.event("\"event\":\"executor_deleted\",\"executor\":2,\"cause\":\"stop\"");
      posse.event("\"event\":\"something_new\",\"executor\":7");
      posse.event("\"event\":\"executor_deleted\",\"executor\":3,\"cause\":\"scaled_down\"");
      posse.event(lost(4, "node_lost", "null", false));
      posse.event(lost(5, "deadline_exceeded", "null", true));
      Check.comes("five losses", () -> engine.lost.size() >= 5);
      // Planned ends are no error.
      Check.same(engine.lost, List.of("1 137 true app_error: so", "2 ended evicted: so", "3 ended posse ended it: scaled_down",
          "4 -1 false node_lost: so", "5 -1 true deadline_exceeded: so"));
      Check.same(List.of(link.hasEnded("1"), link.hasEnded("3"), link.hasEnded("7")), List.of(true, true, false));
      link.end();
    }
  }

  /** An image without Spark: the program that Spark's pod starts is missing there, or the Java that Spark's entry point starts. */
  private static void images() throws Exception {
    String missing = "container spark: exit code 128, StartError, failed to create containerd task: exec: \\\"executor\\\": executable"
        + " file not found in $PATH: unknown";
    for (String[] one : new String[][] {
        {lost(1, "config_error", "128", true).replace("\"so\"", "\"" + missing + "\""),
            "exec: \"executor\": executable file not found in $PATH: unknown"},
        {lost(1, "app_error", "127", true), "so"},
        {lost(1, "app_error", "126", true), "so"},
        // It has started, or something else is missing.
        {lost(1, "app_error", "1", true), null},
        {lost(1, "config_error", "null", true), null},
        {lost(1, "image_error", "null", true), null}}) {
      try (FakePosse posse = new FakePosse()) {
        Engine engine = new Engine();
        engine.image = "python:3.12";
        posse.answers.put("GET /v1/status", "200 {\"run\":\"r\",\"namespace\":\"n\",\"version\":\"" + Link.version() + "\"}");
        Link link = link(posse, engine);
        posse.event("\"group\":\"0\"," + one[0]);
        // It is told once.
        posse.event("\"group\":\"0\"," + one[0].replace("\"executor\":1", "\"executor\":2"));
        Check.comes("two losses", () -> engine.lost.size() == 2);
        Check.same(engine.told, one[1] == null ? List.of() : List.of("executor 1 cannot start in the image python:3.12 (" + one[1]
            + "): if this image has no Spark, Spark's entry point or Java, name one that has them in spark.kubernetes.container.image"));
        link.end();
      }
    }
  }

  private static String ending(int executor, String deadline) {
    return "\"time\":\"2026-01-01T00:00:00.000Z\",\"event\":\"executor_ending\",\"executor\":" + executor
        + ",\"reason\":\"evicted\",\"message\":\"a drain\",\"deadline\":\"" + deadline + "\"";
  }

  /** An executor that is told to end works on until its pod is gone, although posse has lost it. */
  private static void endings() throws Exception {
    String late = "2026-01-01T01:00:00.000Z";
    String present = "{\"id\":1,\"state\":\"terminating\"},{\"id\":2,\"state\":\"running\"}";
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      engine.decommissions = true;
      engine.executors.addAll(List.of("1", "2", "3", "4"));
      posse.run("r1", present);
      Link link = link(posse, engine);
      posse.event(ending(1, late));
      posse.event(lost(1, "evicted", "null", false));
      posse.event(ending(3, late));
      posse.event(lost(3, "evicted", "null", false));
      // Its grace period is long over, as after a pause of this process.
      posse.event(ending(2, "2025-12-31T23:00:00.000Z"));
      posse.event(lost(2, "preempted", "null", false));
      Check.comes("two ends", () -> engine.lost.size() >= 5);
      Check.same(engine.lost, List.of("1 ending evicted: a drain", "3 ending evicted: a drain", "2 ending evicted: a drain",
          "2 ended preempted: so", "3 ended evicted: so"));
      Check.same(link.hasEnded("1"), false);
      posse.answers.put("GET /v1/status", "200 {\"run\":\"r1\",\"namespace\":\"n\",\"executors\":[]}");
      Check.comes("the end", () -> link.hasEnded("1"));
      Check.same(engine.lost.get(5), "1 ended evicted: so");
      link.end();
    }
    // Nobody can take its blocks until there is an executor that stays, or until half of its time is over.
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      engine.decommissions = true;
      engine.executors.addAll(List.of("1", "2"));
      posse.run("r1", present);
      Link link = link(posse, engine);
      posse.event(ending(2, "2026-01-01T00:00:04.000Z"));
      posse.event(ending(1, late));
      posse.event(lost(1, "evicted", "null", false));
      Check.comes("the end of the shorter wait", () -> engine.lost.size() == 1);
      Check.same(engine.lost, List.of("2 ending evicted: a drain"));
      engine.executors.add("3");
      Check.comes("another executor", () -> engine.lost.size() == 2);
      Check.same(engine.lost.get(1), "1 ending evicted: a drain");
      Check.same(link.hasEnded("1"), false);
      link.end();
    }
    // Without spark.decommission.enabled the loss comes at once.
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      posse.run("r1", present);
      Link link = link(posse, engine);
      posse.event(ending(1, late));
      posse.event(lost(1, "evicted", "null", false));
      Check.comes("the loss", () -> engine.lost.size() == 1);
      Check.same(engine.lost, List.of("1 ended evicted: so"));
      link.end();
    }
  }

  private static void missed() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      engine.executors.addAll(List.of("1", "2", "3"));
      posse.run("r1", "{\"id\":1,\"state\":\"running\"},{\"id\":2,\"state\":\"failed\"}");
      Link link = link(posse, engine);
      posse.event("\"event\":\"missed\",\"count\":5");
      Check.comes("two losses", () -> engine.lost.size() >= 2);
      Check.same(engine.lost, List.of("2 -1 false it ended while posse was unreachable", "3 -1 false it ended while posse was unreachable"));
      link.end();
    }
  }

  private static void page() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      engine.page = "http://10.1.2.3:4040";
      Link link = link(posse, engine);
      Check.same(posse.calls.subList(1, 2), List.of("POST /v1/driver/ready {\"page\":\"http://10.1.2.3:4040\"}"));
      link.end();
    }
  }

  private static void targets() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      Link link = link(posse, new Engine());
      Check.same(posse.calls, List.of(PUT + " {\"template\":\"of 0\",\"target\":0}"));
      link.want(Map.of(0, 3));
      Check.comes("a target", () -> posse.calls.contains(PUT + " {\"target\":3}"));
      // A profile that Spark does not name gets the target 0.
      link.want(Map.of(1, 2));
      Check.comes("two targets", () -> posse.calls.size() == 4);
      Check.same(posse.calls.subList(2, 4), List.of(PUT + " {\"target\":0}",
          "PUT /v1/groups/1 {\"template\":\"of 1\",\"target\":2}"));
      // A group that posse does not know is created again.
      posse.answers.put(PUT, "404 {\"error\":\"there is no such group\"}");
      link.want(Map.of(0, 5, 1, 2));
      Check.comes("the group again", () -> posse.calls.contains(PUT + " {\"template\":\"of 0\",\"target\":5}"));
      link.end();
    }
  }

  private static void nodes() throws Exception {
    Check.same(Locality.weights(Map.of("n1", 3, "n2", 600, "n3", 300, "10.0.0.7", 9, "_x", 1, "n4", 0)).toString(),
        "{n1=1, n2=100, n3=50}");
    try (FakePosse posse = new FakePosse()) {
      Link link = link(posse, new Engine());
      link.prefer(Map.of(0, Map.of("n1", 100), 1, Map.of("n2", 7)));
      link.want(Map.of(0, 2, 1, 3));
      Check.comes("all calls", () -> posse.calls.size() >= 6);
      // The group, then its nodes, then its executors.
      Check.same(posse.calls.subList(1, 6), List.of(
          "POST /v1/groups/0 {\"nodes\":{\"prefer\":{\"n1\":100}}}", PUT + " {\"target\":2}",
          "PUT /v1/groups/1 {\"template\":\"of 1\",\"target\":0}",
          "POST /v1/groups/1 {\"nodes\":{\"prefer\":{\"n2\":7}}}", "PUT /v1/groups/1 {\"target\":3}"));
      link.want(Map.of(0, 4, 1, 3));
      Check.comes("a target", () -> posse.calls.size() >= 7);
      // Nodes that posse knows are not told again.
      Check.same(posse.calls.get(6), PUT + " {\"target\":4}");
      link.end();
    }
  }

  private static void kills() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      Link link = link(posse, engine);
      posse.event(lost(1, "app_error", "1", true));
      Check.comes("the loss", () -> link.hasEnded("1"));
      for (String executor : List.of("1", "driver", "0", "-1", "07", "2", "2")) {
        link.removed(executor, "idle", false);
      }
      String kill = "POST /v1/executors/kill {\"executors\":[2],\"replace\":true,\"force\":true,\"reason\":\"Spark removed it\"}";
      Check.comes("a kill", () -> posse.calls.contains(kill));
      Check.same(link.hasEnded("2"), true);
      link.removed("5", "Executor killed by driver.", true);
      String silent = "POST /v1/executors/kill {\"executors\":[5],\"replace\":true,\"force\":true,\"heartbeat_timeout\":true,"
          + "\"reason\":\"Spark has received no heartbeat of it\"}";
      Check.comes("its kill", () -> posse.calls.contains(silent));
      // Its end is not reported to Spark again.
      posse.event(lost(2, "killed", "null", false));
      posse.event(lost(3, "node_lost", "null", false));
      Check.comes("another loss", () -> link.hasEnded("3"));
      Check.comes("its news", () -> engine.lost.size() == 2);
      Check.same(posse.calls.stream().filter(call -> call.startsWith("POST")).toList(), List.of(kill, silent));
      // One that was decommissioned ends by itself, so that posse reads from its pod why. If it hangs, posse ends it.
      long since = System.nanoTime();
      link.removed("4", "Executor decommission: Finished decommissioning", false);
      Check.comes("its kill", () -> posse.calls.contains(kill.replace("2", "4")));
      assert System.nanoTime() - since > 4_000_000_000L : "it had no time to end by itself";
      link.end();
    }
  }

  /** posse is restarted and knows only the pods. */
  private static void anotherRun() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      Engine engine = new Engine();
      engine.executors.addAll(List.of("1", "2"));
      Link link = link(posse, engine);
      link.want(Map.of(0, 2));
      Check.comes("a target", () -> posse.calls.contains(PUT + " {\"target\":2}"));
      posse.calls.clear();
      // Until its first LIST posse knows no executors, so its list is not used.
      posse.answers.put("GET /readyz", "503 {\"error\":\"not now\"}");
      posse.run("r2", "");
      int before = posse.readyz.get();
      Check.comes("two questions", () -> posse.readyz.get() >= before + 2);
      Check.same(engine.lost, List.of());
      posse.run("r2", "{\"id\":2,\"state\":\"running\"}");
      posse.answers.put("GET /readyz", "200 {}");
      Check.comes("the group again", () -> posse.calls.contains(PUT + " {\"template\":\"of 0\",\"target\":2}"));
      Check.same(engine.lost, List.of("1 -1 false it ended while posse was unreachable"));
      link.end();
    }
  }

  private static void end() throws Exception {
    try (FakePosse posse = new FakePosse()) {
      Link link = link(posse, new Engine());
      link.want(Map.of(0, 1, 4, 1));
      Check.comes("both groups", () -> posse.calls.size() == 3);
      Check.same(link.end(), true);
      Check.same(link.end(), false);
      link.want(Map.of(0, 9));
      Check.same(posse.calls.subList(3, posse.calls.size()), List.of("DELETE /v1/groups/0 ", "DELETE /v1/groups/4 "));
    }
  }
}
