package dev.posse.spark;

import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeSet;

import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.network.util.JavaUtils;

/** Spark's keys that mean something else with posse. All others reach Spark as they are. */
final class Keys {
  /** Keys about which posse-spark-submit has told already, or which it has put into posse's configuration. */
  static final String TOLD = "spark.posse.told";
  /** The number that Spark takes for "no limit". */
  static final String NO_LIMIT = "2147483647";

  private static final String POD_NAME_PREFIX = "spark.kubernetes.executor.podNamePrefix";
  private static final int IN_FLIGHT_MAX = 256;
  /** The longest time that posse takes. */
  private static final String LONGEST = "1000d";

  private enum Kind { NOTHING, NUMBER, IN_FLIGHT, TIME, WINDOW, TEXT, KEEP }

  /**
   * @param posse the key of posse.yaml; empty: there is none
   * @param forced the value that Spark itself must have; empty: any
   * @param note what posse does instead
   */
  record Key(String name, String posse, Kind kind, String forced, String note) {
    /** Where somebody finds what stands for this key. */
    String instead() {
      return posse.isEmpty() ? note : posse + " in posse.yaml";
    }

    /** The value in posse.yaml; empty: Spark's value means what posse does anyway. */
    private Optional<Object> value(String text) {
      try {
        return switch (kind) {
          case NOTHING -> Optional.empty();
          case TEXT -> Optional.of(text);
          case NUMBER -> text.equals(NO_LIMIT) ? Optional.empty() : Optional.of(natural(text));
          case IN_FLIGHT -> Optional.of(Math.min(natural(text), IN_FLIGHT_MAX));
          case TIME -> Optional.of(duration(JavaUtils.timeStringAsMs(text)));
          // Without a window Spark counts for ever.
          case WINDOW -> Optional.of(JavaUtils.timeStringAsMs(text) > 0 ? duration(JavaUtils.timeStringAsMs(text)) : LONGEST);
          case KEEP -> Boolean.parseBoolean(text) ? Optional.of(0) : Optional.empty();
        };
      } catch (IllegalArgumentException e) {
        throw new IllegalArgumentException(name + " is " + text + ", which is no " + posse + ": " + e.getMessage(), e);
      }
    }
  }

  static final List<Key> ALL = List.of(
      key("spark.app.name", "app", Kind.TEXT),
      key("spark.kubernetes.namespace", "namespace", Kind.TEXT),
      new Key("spark.executor.maxNumFailures", "failures.app", Kind.NUMBER, NO_LIMIT, ""),
      key("spark.executor.failuresValidityInterval", "failures.window", Kind.WINDOW),
      new Key("spark.kubernetes.executor.deleteOnTermination", "failures.keep_failed", Kind.KEEP, "false", ""),
      key("spark.kubernetes.allocation.batch.size", "allocation.in_flight_max", Kind.IN_FLIGHT),
      key("spark.kubernetes.allocation.executor.timeout", "allocation.start_timeout", Kind.TIME),
      key("spark.kubernetes.allocation.maxPendingPods", "allocation.pending_max", Kind.NUMBER),
      key("spark.posse.driver.retries", "driver.retries", Kind.NUMBER),
      none("spark.kubernetes.allocation.maxPendingPodsPerRp", "spark.kubernetes.allocation.maxPendingPods is over all profiles"),
      none("spark.kubernetes.allocation.batch.delay", "posse does not wait between creates"),
      none("spark.kubernetes.allocation.driver.readinessTimeout", "driver.ready of a file for posse submit holds creates back"),
      none("spark.kubernetes.allocation.maximum", "spark.executor.maxNumFailures ends an application that always fails"),
      none("spark.kubernetes.executor.checkAllContainers", "Spark's container alone decides"),
      new Key("spark.kubernetes.executor.enableApiWatcher", "", Kind.NOTHING, "false", "losses come from posse"),
      none("spark.kubernetes.executor.podDeletionCost", "Spark itself names the executors that end"),
      none(POD_NAME_PREFIX, "pods are named <app>-<instance>-exec-<id>"));

  /** Keys that begin with this prefix, which nobody reads, and what to use instead. */
  record Other(String prefix, String note) {}

  private static final String YARN = "spark.yarn.";
  private static final String EXECUTOR = "spark.kubernetes.executor.";
  private static final String DIRECT_ONLY = "Spark's plugin works with Spark's own allocator only; ";
  private static final String CLAIMS = DIRECT_ONLY + "choose a larger options.sizeLimit, or a controller that grows claims";
  private static final String MEMORY = DIRECT_ONLY + "spark.kubernetes.allocation.recoveryMode.enabled gives each task more"
      + " memory after an OOM";
  private static final String PLUGINS = "spark.plugins";

  /** Those which Spark on Kubernetes, or Spark with another allocator than its own, does not read. The first prefix counts. */
  private static final List<Other> OTHERS = List.of(
      new Other(EXECUTOR + "pvc.resize", CLAIMS),
      new Other(EXECUTOR + "resize", MEMORY),
      new Other(YARN + "queue", "a queue of Kueue, or a quota of the namespace: docs/SHARED_CLUSTERS.md"),
      new Other(YARN + "maxAppAttempts", "spark.posse.driver.retries in cluster mode"),
      new Other(YARN + "max.executor.failures", "spark.executor.maxNumFailures"),
      new Other(YARN + "executor.failuresValidityInterval", "spark.executor.failuresValidityInterval"),
      new Other(YARN + "executor.nodeLabelExpression", EXECUTOR + "node.selector.NAME"),
      new Other(YARN + "am.nodeLabelExpression", "spark.kubernetes.driver.node.selector.NAME"),
      new Other(YARN + "am.", "there is no application master: the driver's pod has spark.driver.memory and spark.driver.cores"),
      new Other(YARN + "appMasterEnv.", "spark.kubernetes.driverEnv.NAME"),
      new Other(YARN + "dist.", "--jars, --files and --archives"),
      new Other(YARN + "stagingDir", "spark.kubernetes.file.upload.path"),
      new Other(YARN + "jars", "Spark is in the image"),
      new Other(YARN + "archive", "Spark is in the image"),
      new Other(YARN + "submit.waitAppCompletion", "spark.kubernetes.submission.waitAppCompletion"),
      new Other(YARN + "tags", "spark.kubernetes.driver.label.NAME"),
      new Other(YARN + "priority", "priorityClassName in the pod templates"),
      new Other(YARN + "shuffle.", "examples/shuffle has Spark's external shuffle service"),
      new Other(YARN, "only YARN reads it"),
      new Other("spark.hadoop.yarn.", "only YARN reads it"));

  private Keys() {}

  /** What stands for a key that nobody reads here; empty: it is no such key. */
  static Optional<String> other(String key, String value) {
    if (key.equals(PLUGINS)) {
      return value.contains("ExecutorPVCResizePlugin") ? Optional.of(CLAIMS)
          : value.contains("ExecutorResizePlugin") ? Optional.of(MEMORY) : Optional.empty();
    }
    return note(OTHERS, key);
  }

  static Optional<String> note(List<Other> others, String key) {
    return others.stream().filter(one -> key.startsWith(one.prefix())).findFirst().map(Other::note);
  }

  private static Key key(String name, String posse, Kind kind) {
    return new Key(name, posse, kind, "", "");
  }

  private static Key none(String name, String note) {
    return new Key(name, "", Kind.NOTHING, "", note);
  }

  /** One line with the keys that are set and have no effect; none: there are none. `told` gets their names. */
  static Optional<String> withoutEffect(Map<String, String> conf, Set<String> told) {
    List<String> without = new ArrayList<>();
    for (Key key : ALL) {
      String value = conf.get(key.name());
      // These two are what they are with Spark, too.
      boolean isSame = key.kind() == Kind.TEXT;
      if (value != null && !isSame && !isDefault(key, value) && told.add(key.name())) {
        without.add(key.name() + " (" + key.instead() + ")");
      }
    }
    conf.forEach((key, value) -> other(key, value).filter(note -> told.add(key))
        .ifPresent(note -> without.add(key + " (" + note + ")")));
    return line(without);
  }

  static Optional<String> line(List<String> without) {
    return without.isEmpty() ? Optional.empty() : Optional.of("no effect with posse: " + String.join(", ", without));
  }

  /** Spark's own values: those that it must have, and its prefix, the application's name and 16 digits. */
  private static boolean isDefault(Key key, String value) {
    return value.strip().equalsIgnoreCase(key.forced())
        || key.name().equals(POD_NAME_PREFIX) && value.matches(".+-[0-9a-f]{16}");
  }

  /** Puts these keys of Spark into posse's configuration, and returns their names. */
  static Set<String> map(Map<String, String> conf, ObjectNode configuration) {
    Set<String> mapped = new TreeSet<>();
    for (Key key : ALL) {
      String text = conf.get(key.name());
      if (text == null || key.posse().isEmpty()) {
        continue;
      }
      key.value(text.strip()).ifPresent(value -> {
        String[] path = key.posse().split("\\.");
        ObjectNode node = path.length == 1 ? configuration : configuration.withObject("/" + path[0]);
        node.putPOJO(path[path.length - 1], value);
      });
      mapped.add(key.name());
    }
    return mapped;
  }

  /** What becomes of this key, for people. */
  static String explain(Key key, Optional<String> value) {
    if (key.posse().isEmpty()) {
      return "nothing: " + key.note();
    }
    return key.posse() + value.flatMap(key::value).map(there -> ": " + there).orElse("");
  }

  private static int natural(String text) {
    // As large as Spark takes them.
    if (!text.matches("[0-9]{1,10}") || Long.parseLong(text) > Integer.MAX_VALUE) {
      throw new IllegalArgumentException("it should be a whole number");
    }
    return Integer.parseInt(text);
  }

  private static String duration(long millis) {
    if (millis <= 0) {
      throw new IllegalArgumentException("it should be above 0");
    }
    return millis % 1000 == 0 ? millis / 1000 + "s" : millis + "ms";
  }
}
