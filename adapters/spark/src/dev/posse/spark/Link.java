package dev.posse.spark;

import java.io.ByteArrayOutputStream;
import java.io.IOException;
import java.io.InputStream;
import java.nio.channels.Selector;
import java.nio.charset.StandardCharsets;
import java.time.Duration;
import java.time.Instant;
import java.util.HashMap;
import java.util.HashSet;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;
import java.util.TreeSet;
import java.util.concurrent.locks.ReentrantLock;
import java.util.stream.Collectors;

import com.fasterxml.jackson.databind.JsonNode;
import com.fasterxml.jackson.databind.node.ArrayNode;
import com.fasterxml.jackson.databind.node.ObjectNode;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

/**
 * The connection between Spark and posse, with one thread: sends targets to posse, and reports lost
 * executors to Spark. posse may be restarted at any time.
 */
final class Link {
  private static final Logger LOG = LoggerFactory.getLogger(Link.class);

  /** An event stream sends an empty line every 15 s. */
  private static final long SILENCE_MILLIS_MAX = 45_000;
  private static final long AWAY_MILLIS = 1_000;
  /** The pause after a refusal that may be temporary. */
  private static final long REFUSED_MILLIS = 10_000;
  private static final int LINE_BYTES_MAX = 1 << 20;
  /** How many ended ids are remembered, to recognise late reports. */
  private static final int ENDED_MAX = 20_000;
  /** Reasons for a loss that somebody or the cluster has planned: they are no error. */
  private static final Set<String> PLANNED =
      Set.of("evicted", "preempted", "node_shutdown", "killed", "deadline_exceeded");
  /** After its deadline an executor is killed, and its pod goes. */
  private static final long KILLED_MILLIS = 5_000;
  /** The part of its time that an executor waits for another one that can take its blocks. */
  private static final int WAIT_DIVISOR = 2;
  /** How Spark's reason for a removal begins if it decommissioned the executor. */
  private static final String DECOMMISSIONED = "Executor decommission";
  /** An executor that was decommissioned ends by itself, within this time. */
  private static final long OWN_END_MILLIS = 5_000;
  /** The exit codes of a shell for a program that it cannot start. */
  private static final int NOT_EXECUTABLE = 126;
  private static final int NOT_FOUND = 127;
  /** That of a Spark executor whose JVM had too little memory: SparkExitCode.OOM. */
  private static final int JVM_OOM = 52;
  private static final int START_TRIES_MAX = 30;
  private static final int END_TRIES_MAX = 3;

  /** The link's view of Spark. */
  interface Engine {
    /** The body of the PUT that creates this profile's group, without the target. */
    ObjectNode group(int profile);

    /** A line for the driver's log about something that a person must change. */
    void tell(String line);

    /** The URL of Spark's own page; empty if it has none. */
    String page();

    /** The executors that Spark knows now. */
    List<String> executors();

    void lost(String executor, int exitCode, boolean causedByApp, String why);

    /** An executor had too little memory. True if the templates of executors to come are other ones from now on. */
    boolean recover();

    /** The executor was ended on purpose. No task attempt counts as failed. */
    void ended(String executor, String why);

    /** Whether Spark uses the time of an executor that will end: it moves what the executor holds to others. */
    boolean decommissions();

    /** The executors that can take blocks of others. */
    Set<String> takers();

    /** The executor will end soon, so Spark decommissions it. Without effect if it does so already. */
    void ending(String executor, String why);
  }

  private final Control control;
  private final String namespace;
  private final Engine engine;
  private final Selector bell;

  /** Held while a call is under way that must be over before the end. */
  private final ReentrantLock sending = new ReentrantLock();
  private volatile boolean isOver;

  // Written by Spark's threads, guarded by `this`.
  private Map<Integer, Integer> wanted = new TreeMap<>();
  /** The nodes that executors to come should be on, by profile. */
  private Map<Integer, Map<String, Integer>> nodes = Map.of();
  /** Executors that posse must end, by the time from which on it must, in nanoseconds. */
  private final Map<Long, Long> removed = new TreeMap<>();
  /** Those of them of which Spark has heard no heartbeat for too long. */
  private final Set<Long> silent = new HashSet<>();
  private final Map<String, Boolean> ended = new LinkedHashMap<>() {
    private static final long serialVersionUID = 1L;

    @Override
    protected boolean removeEldestEntry(Map.Entry<String, Boolean> eldest) {
      return size() > ENDED_MAX;
    }
  };

  // Used by the link's thread, or guarded by `sending`.
  private String run = "";
  private long after;
  private boolean isAway;
  private long retryAt;
  /** When to look next for decommissioned executors that have ended. */
  private long nextLook = System.nanoTime();
  /** The last target that posse accepted in this run, by profile. */
  private final Map<Integer, Integer> sent = new HashMap<>();
  private final Set<Integer> refused = new HashSet<>();
  /** The nodes that posse has last heard of in this run, by profile. */
  private final Map<Integer, Map<String, Integer>> sentNodes = new HashMap<>();
  /** The image of Spark's container, by group. A person was told of those that have none here. */
  private final Map<String, String> images = new HashMap<>();
  /** The executors that Spark was told will end, by the time at which they must have ended, in nanoseconds. */
  private final Map<String, Long> ending = new HashMap<>();
  /** Those of them that Spark does not decommission yet, because nobody could take their blocks. */
  private final Map<String, Waiting> waiting = new TreeMap<>();
  /** Those of them that posse has lost: why. They still run, and Spark still fetches what they hold. */
  private final Map<String, String> leaving = new TreeMap<>();

  /** Why an executor will end, and until when it waits for others, in nanoseconds. */
  private record Waiting(String why, long until) {}

  Link(Control control, String namespace, Engine engine) {
    this.control = control;
    this.namespace = namespace;
    this.engine = engine;
    try {
      this.bell = Selector.open();
    } catch (IOException e) {
      throw new IllegalArgumentException("cannot open a selector: " + e, e);
    }
  }

  /**
   * Creates the first group, without executors, and starts the thread.
   *
   * @throws IllegalArgumentException with what is wrong and what to do
   */
  void start(int profile) {
    try {
      JsonNode status = control.status();
      if (!status.path("namespace").asText().equals(namespace)) {
        throw new IllegalArgumentException("posse's namespace is " + status.path("namespace").asText()
            + " and spark.kubernetes.namespace is " + namespace + ": they must be the same");
      }
      compareVersions(status.path("version").asText("an older one"));
      run = status.path("run").asText();
      after = newestEvent();
      Control.Answer answer = put(profile, 0);
      for (int tries = 1; isLater(answer) && tries < START_TRIES_MAX; tries++) {
        LOG.info("posse cannot create the executors' group now, retrying: {}", answer.error());
        pause(AWAY_MILLIS);
        answer = put(profile, 0);
      }
      if (!answer.isOk()) {
        throw new IllegalArgumentException(refusal(answer));
      }
      sent.put(profile, 0);
      if (!engine.page().isEmpty()) {
        // An older posse does not read it.
        control.call("POST", "/v1/driver/ready", Control.JSON.createObjectNode().put("page", engine.page()));
      }
    } catch (IOException e) {
      throw control.silent(e);
    }
    LOG.info("posse at {} manages the executors (run {})", control.address, run);
    Thread thread = new Thread(this::follow, "posse-link");
    thread.setDaemon(true);
    thread.start();
  }

  private void compareVersions(String posse) throws IOException {
    if (!posse.equals(version())) {
      engine.tell("this posse-spark.jar is of posse " + version() + ", and the posse that runs is " + posse
          + ": use the jar of its release");
    }
  }

  /** posse's version when this jar was built. */
  static String version() throws IOException {
    try (InputStream file = Link.class.getResourceAsStream("version")) {
      return file == null ? "unknown" : new String(file.readAllBytes(), StandardCharsets.UTF_8).strip();
    }
  }

  /** The call is valid and can be repeated later. */
  private static boolean isLater(Control.Answer answer) {
    return answer.status() == 429 || answer.status() == 503;
  }

  private static String refusal(Control.Answer answer) {
    boolean isOld = answer.status() == 404 || answer.status() == 405
        || answer.body().path("error").asText().startsWith("unknown field");
    return isOld
        ? "this posse is too old, its control API cannot create groups (" + answer.error() + "): use a newer one"
        : answer.status() == 400
            ? "the executors' pod is refused: " + answer.error()
            : "posse does not take the executors' group: " + answer.error();
  }

  /** Sets the targets. Profiles that are not named get the target 0. */
  void want(Map<Integer, Integer> targets) {
    synchronized (this) {
      wanted.replaceAll((profile, target) -> 0);
      wanted.putAll(targets);
    }
    ring();
  }

  /** Names the nodes for executors to come, with weights from 1 to 100. Call it before `want`. */
  synchronized void prefer(Map<Integer, Map<String, Integer>> nodes) {
    this.nodes = nodes;
  }

  /** Spark removed an executor, a silent one because it has heard no heartbeat. posse ends it if it still runs. */
  void removed(String executor, String why, boolean isSilent) {
    synchronized (this) {
      if (ended.containsKey(executor) || !executor.matches("[1-9][0-9]{0,17}")) {
        return;
      }
      ended.put(executor, true);
      // Otherwise it would count as an executor that Spark had to replace, and not as one of a node that is shut down.
      long millis = why.startsWith(DECOMMISSIONED) ? OWN_END_MILLIS : 0;
      removed.put(Long.valueOf(executor), System.nanoTime() + millis * 1_000_000);
      if (isSilent) {
        silent.add(Long.valueOf(executor));
      }
    }
    LOG.info("Spark removed executor {} ({}): posse ends it", executor, why);
    ring();
  }

  private synchronized void ring() {
    if (bell.isOpen()) {
      bell.wakeup();
    }
  }

  synchronized boolean hasEnded(String executor) {
    return ended.containsKey(executor);
  }

  /** Deletes all groups. False if an earlier call has done so. */
  boolean end() {
    sending.lock();
    try {
      if (isOver) {
        return false;
      }
      isOver = true;
      ring();
      Set<Integer> profiles = new TreeSet<>(sent.keySet());
      synchronized (this) {
        profiles.addAll(wanted.keySet());
      }
      profiles.forEach(this::delete);
      return true;
    } finally {
      sending.unlock();
    }
  }

  private void delete(int profile) {
    String why = "";
    for (int tries = 0; tries < END_TRIES_MAX; tries++) {
      try {
        Control.Answer answer = control.call("DELETE", "/v1/groups/" + profile, null);
        if (answer.isOk() || answer.status() == 404) {
          return;
        }
        why = answer.error();
      } catch (IOException e) {
        why = e.toString();
      }
      pause(AWAY_MILLIS);
    }
    LOG.warn("The executors of profile {} remain, posse at {} did not delete them: {}. `posse cleanup` does",
        profile, control.address, why);
  }

  private static void pause(long millis) {
    try {
      Thread.sleep(millis);
    } catch (InterruptedException e) {
      Thread.currentThread().interrupt();
    }
  }

  private void follow() {
    while (!isOver) {
      try {
        session();
      } catch (Exception e) {
        // Any exception: without this thread posse would get no targets any more.
        if (!isAway && !isOver) {
          LOG.warn("posse at {} is unreachable ({}); the executors continue, and the targets are sent when it is back",
              control.address, e.getMessage() == null ? e.toString() : e.getMessage());
        }
        isAway = true;
      }
      if (!isOver) {
        pause(AWAY_MILLIS);
      }
    }
    synchronized (this) {
      try {
        bell.close();
      } catch (IOException e) {
        LOG.debug("A selector could not be closed", e);
      }
    }
  }

  /** Follows the events until the connection ends. */
  private void session() throws IOException {
    // Before its first LIST posse knows no executors.
    Control.Answer ready = control.call("GET", "/readyz", null);
    if (!ready.isOk()) {
      throw new IOException("not ready: " + ready.error());
    }
    List<String> known = List.copyOf(engine.executors());
    JsonNode status = control.status();
    boolean isNew = !status.path("run").asText().equals(run);
    if (isNew) {
      LOG.info("posse at {} was restarted (run {})", control.address, status.path("run").asText());
      begin(status.path("run").asText());
    } else if (isAway) {
      LOG.info("posse at {} is back", control.address);
    }
    isAway = false;
    String path = "/v1/events?follow=true&run=" + run + "&after=" + after;
    try (Exchange events = control.open(bell, "GET", path, new byte[0])) {
      if (events.status() != 200) {
        throw new IOException("no events, status " + events.status());
      }
      if (isNew) {
        missing(known, status);
      }
      read(events);
    }
  }

  /** Starts with a new run of posse, which knows none of our groups. */
  private void begin(String run) {
    sending.lock();
    try {
      this.run = run;
      after = 0;
      sent.clear();
      sentNodes.clear();
    } finally {
      sending.unlock();
    }
  }

  private void read(Exchange events) throws IOException {
    Lines lines = new Lines();
    long heard = System.nanoTime();
    while (!isOver) {
      send();
      decommission();
      reportEnded();
      byte[] bytes = events.body(AWAY_MILLIS);
      if (bytes == null) {
        throw new IOException("the event stream ended");
      }
      if (bytes.length == 0) {
        if (System.nanoTime() - heard > SILENCE_MILLIS_MAX * 1_000_000) {
          throw new IOException("no data from the event stream");
        }
        continue;
      }
      heard = System.nanoTime();
      lines.read(bytes, this::event);
    }
  }

  private void event(JsonNode event) throws IOException {
    String id = event.path("executor").asText();
    switch (event.path("event").asText()) {
      case "executor_ending" -> ending(id, event);
      case "executor_lost" -> {
        lookAtImage(id, event);
        if (ending.getOrDefault(id, 0L) - System.nanoTime() > 0 && !hasEnded(id)) {
          leaving.put(id, why(event));
        } else if (isNew(id)) {
          lost(id, event);
        }
      }
      case "executor_deleted" -> {
        if (isNew(id)) {
          engine.ended(id, "posse ended it: " + event.path("cause").asText());
        }
      }
      case "create_refused" -> LOG.warn("No executors for profile {} now ({}): {}",
          event.path("group").asText(), event.path("cause").asText(), event.path("message").asText());
      case "missed" -> missing(List.copyOf(engine.executors()), control.status());
      default -> { }
    }
    after = event.path("seq").asLong(after);
  }

  private static String why(JsonNode event) {
    return event.path("reason").asText() + ": " + event.path("message").asText();
  }

  /** Tells a person of an image without Spark. Spark itself only counts the executors that fail. */
  private void lookAtImage(String id, JsonNode event) {
    int code = event.path("exit_code").asInt(0);
    boolean lacksProgram = switch (event.path("reason").asText()) {
      // The container's runtime did not start the program that the pod names.
      case "config_error" -> code != 0;
      // The image's entry point did not start the program that follows.
      case "app_error" -> code == NOT_EXECUTABLE || code == NOT_FOUND;
      default -> false;
    };
    String image = lacksProgram ? images.remove(event.path("group").asText()) : null;
    if (image != null) {
      // The runtime says on which of its ways it failed, and then why.
      String why = event.path("message").asText().replaceFirst("^.*?(?=exec: )", "");
      engine.tell("executor " + id + " cannot start in the image " + image + " (" + why
          + "): if this image has no Spark, Spark's entry point or Java, name one that has them in spark.kubernetes.container.image");
    }
  }

  private void ending(String id, JsonNode event) {
    if (hasEnded(id) || !engine.decommissions()) {
      return;
    }
    // Both times are of posse's clock.
    long millis = Duration.between(Instant.parse(event.path("time").asText()), Instant.parse(event.path("deadline").asText()))
        .toMillis();
    long now = System.nanoTime();
    ending.put(id, now + (millis + KILLED_MILLIS) * 1_000_000);
    waiting.put(id, new Waiting(why(event), now + millis * 1_000_000 / WAIT_DIVISOR));
    LOG.info("Executor {} will end within {} s ({}): Spark decommissions it", id, millis / 1_000, why(event));
    decommission();
  }

  /**
   * Spark decommissions an executor when another one can take its blocks: one that finds none gives up for ever. The successors of
   * all executors of a node that is drained come a moment later.
   */
  private void decommission() {
    waiting.keySet().removeIf(this::hasEnded);
    if (waiting.isEmpty()) {
      return;
    }
    Set<String> takers = new HashSet<>(engine.takers());
    takers.removeAll(ending.keySet());
    for (Map.Entry<String, Waiting> each : Map.copyOf(waiting).entrySet()) {
      if (!takers.isEmpty() || each.getValue().until - System.nanoTime() <= 0) {
        waiting.remove(each.getKey());
        engine.ending(each.getKey(), each.getValue().why);
      }
    }
  }

  /** Reports decommissioned executors when they have ended: posse loses them as soon as their pods terminate. */
  private void reportEnded() throws IOException {
    ending.keySet().removeIf(this::hasEnded);
    leaving.keySet().removeIf(this::hasEnded);
    if (leaving.isEmpty() || System.nanoTime() - nextLook < 0) {
      return;
    }
    nextLook = System.nanoTime() + AWAY_MILLIS * 1_000_000;
    Set<String> there = there(control.status());
    for (Map.Entry<String, String> left : Map.copyOf(leaving).entrySet()) {
      String id = left.getKey();
      boolean isOverdue = ending.getOrDefault(id, 0L) - System.nanoTime() <= 0;
      if ((isOverdue || !there.contains(id)) && isNew(id)) {
        engine.ended(id, left.getValue());
      }
    }
  }

  private void lost(String id, JsonNode event) {
    String reason = event.path("reason").asText();
    String why = why(event);
    boolean causedByApp = event.path("caused_by_app").asBoolean();
    if (PLANNED.contains(reason) && !causedByApp) {
      engine.ended(id, why);
    } else {
      int code = event.path("exit_code").asInt(-1);
      engine.lost(id, code, causedByApp, why);
      if ((reason.equals("oom_killed") || code == JVM_OOM) && engine.recover()) {
        // The next target of each profile brings its template again.
        sending.lock();
        try {
          sent.clear();
        } finally {
          sending.unlock();
        }
      }
    }
  }

  /**
   * True at the first report of an executor, which has the reason. Spark gets it also if it does not know the
   * executor, because that may be registering now.
   */
  private synchronized boolean isNew(String id) {
    return ended.put(id, true) == null;
  }

  /** The executors whose pods have not ended. */
  private static Set<String> there(JsonNode status) {
    Set<String> there = new HashSet<>();
    for (JsonNode executor : status.path("executors")) {
      if (!executor.path("state").asText().equals("failed")) {
        there.add(executor.path("id").asText());
      }
    }
    return there;
  }

  /** Reports executors that ended while posse was unreachable. */
  private void missing(List<String> known, JsonNode status) {
    Set<String> there = there(status);
    for (String id : known) {
      if (!there.contains(id) && isNew(id)) {
        engine.lost(id, -1, false, "it ended while posse was unreachable");
      }
    }
  }

  /** Sends changes: targets first, so that removed executors are not replaced. */
  private void send() throws IOException {
    sending.lock();
    try {
      Map<Integer, Integer> targets;
      Map<Integer, Map<String, Integer>> prefer;
      List<Long> ends;
      long now = System.nanoTime();
      synchronized (this) {
        targets = new TreeMap<>(wanted);
        prefer = nodes;
        ends = removed.entrySet().stream().filter(one -> one.getValue() - now <= 0).map(Map.Entry::getKey).toList();
      }
      if (isOver || System.nanoTime() < retryAt && retryAt != 0) {
        return;
      }
      retryAt = 0;
      for (Map.Entry<Integer, Integer> target : targets.entrySet()) {
        if (!target.getValue().equals(sent.get(target.getKey()))) {
          sendNodes(target.getKey(), prefer.getOrDefault(target.getKey(), Map.of()));
          sendTarget(target.getKey(), target.getValue());
        }
      }
      Map<Boolean, List<Long>> bySilence = ends.stream().collect(Collectors.partitioningBy(this::isSilent));
      for (boolean isSilent : List.of(true, false)) {
        if (!bySilence.get(isSilent).isEmpty()) {
          kill(bySilence.get(isSilent), isSilent);
        }
      }
    } finally {
      sending.unlock();
    }
  }

  /** Before the target: they count for the executors that posse creates then. Without them executors run all the same. */
  private void sendNodes(int profile, Map<String, Integer> weights) throws IOException {
    if (weights.equals(sentNodes.getOrDefault(profile, Map.of()))) {
      return;
    }
    if (!sent.containsKey(profile)) {
      sendTarget(profile, 0);
    }
    Control.Answer answer = control.call("POST", "/v1/groups/" + profile, Locality.body(weights));
    if (!answer.isOk()) {
      LOG.warn("posse prefers no nodes for profile {}: {}", profile, answer.error());
    }
    sentNodes.put(profile, weights);
  }

  private void sendTarget(int profile, int target) throws IOException {
    String error;
    try {
      Control.Answer answer = put(profile, target);
      if (answer.status() == 404) {
        sent.remove(profile);
        answer = put(profile, target);
      }
      if (answer.isOk()) {
        sent.put(profile, target);
        if (refused.remove(profile)) {
          LOG.info("posse accepts profile {} now", profile);
        }
        return;
      }
      error = answer.error();
    } catch (IllegalArgumentException e) {
      error = e.getMessage();
    }
    retryAt = System.nanoTime() + REFUSED_MILLIS * 1_000_000;
    if (refused.add(profile)) {
      LOG.error("posse refuses profile {} with {} executors, retrying: {}", profile, target, error);
    }
  }

  private synchronized boolean isSilent(Long executor) {
    return silent.contains(executor);
  }

  private void kill(List<Long> executors, boolean isSilent) throws IOException {
    ObjectNode body = Control.JSON.createObjectNode();
    ArrayNode list = body.putArray("executors");
    executors.forEach(list::add);
    // The target decides whether posse replaces them.
    body.put("replace", true).put("force", true);
    if (isSilent) {
      body.put("heartbeat_timeout", true).put("reason", "Spark has received no heartbeat of it");
    } else {
      body.put("reason", "Spark removed it");
    }
    Control.Answer answer = control.call("POST", "/v1/executors/kill", body);
    if (answer.isOk() || answer.status() == 400) {
      synchronized (this) {
        executors.forEach(removed::remove);
        executors.forEach(silent::remove);
      }
    }
    if (!answer.isOk()) {
      LOG.warn("posse does not end executors {}: {}", executors, answer.error());
      retryAt = System.nanoTime() + AWAY_MILLIS * 1_000_000;
    }
  }

  /** Includes the template if posse does not know the group yet. */
  private Control.Answer put(int profile, int target) throws IOException {
    boolean isKnown = sent.containsKey(profile);
    ObjectNode body = isKnown ? Control.JSON.createObjectNode() : engine.group(profile);
    if (!isKnown) {
      images.put(Integer.toString(profile), Template.image(body));
    }
    return control.call("PUT", "/v1/groups/" + profile, body.put("target", target));
  }

  /** Skips the events of applications that used this posse before. */
  private long newestEvent() throws IOException {
    long[] newest = {0};
    Lines lines = new Lines();
    try (Selector selector = Selector.open();
        Exchange events = control.open(selector, "GET", "/v1/events", new byte[0])) {
      byte[] bytes;
      while ((bytes = events.body(SILENCE_MILLIS_MAX)) != null) {
        if (bytes.length == 0) {
          throw new IOException("silent");
        }
        lines.read(bytes, event -> newest[0] = event.path("seq").asLong(newest[0]));
      }
    }
    return newest[0];
  }

  private interface OnLine {
    void take(JsonNode line) throws IOException;
  }

  /** Splits NDJSON into lines. */
  private static final class Lines {
    private final ByteArrayOutputStream begun = new ByteArrayOutputStream();

    void read(byte[] bytes, OnLine to) throws IOException {
      for (byte b : bytes) {
        if (b != '\n') {
          begun.write(b);
        } else if (begun.size() > 0) {
          JsonNode line = Control.JSON.readTree(begun.toString(StandardCharsets.UTF_8));
          begun.reset();
          to.take(line);
        }
        if (begun.size() > LINE_BYTES_MAX) {
          throw new IOException("an event has more than " + LINE_BYTES_MAX + " bytes");
        }
      }
    }
  }
}
