package dev.posse.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;

import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.SparkConf;

/** Spark's configuration: required keys, keys without effect, and the address of posse. */
final class Settings {
  /** Without these Spark and posse would both do the same work. */
  private static final Map<String, String> NEEDED = new LinkedHashMap<>();
  /** Keys that have no effect with posse, and what to use instead. */
  private static final Map<String, String> INSTEAD = new TreeMap<>();

  private static final String BESIDE = "spark.posse.beside";
  private static final String REUSE = "spark.kubernetes.driver.reusePersistentVolumeClaim";
  private static final String WAIT = "spark.kubernetes.driver.waitToReusePersistentVolumeClaim";
  private static final String POD_NAME_PREFIX = "spark.kubernetes.executor.podNamePrefix";
  /** Keys that this process has told about: a second context would tell the same again. */
  private static final Set<String> TOLD = ConcurrentHashMap.newKeySet();

  static {
    NEEDED.put("spark.kubernetes.executor.deleteOnTermination", "false");
    NEEDED.put("spark.executor.maxNumFailures", "2147483647");
    NEEDED.put("spark.kubernetes.executor.enableApiWatcher", "false");

    String none = "there is nothing to set instead";
    INSTEAD.put("spark.kubernetes.allocation.batch.delay", "posse does not wait between creates");
    INSTEAD.put("spark.kubernetes.allocation.batch.size", "allocation.in_flight_max in posse.yaml");
    INSTEAD.put("spark.kubernetes.allocation.driver.readinessTimeout", "driver.ready in posse.yaml");
    INSTEAD.put("spark.kubernetes.allocation.executor.timeout", "allocation.start_timeout in posse.yaml");
    INSTEAD.put("spark.kubernetes.allocation.maxPendingPods", "allocation.pending_max in posse.yaml");
    INSTEAD.put("spark.kubernetes.allocation.maxPendingPodsPerRp", "allocation.pending_max in posse.yaml");
    INSTEAD.put("spark.kubernetes.allocation.maximum", "failures.app in posse.yaml ends an application that always fails");
    INSTEAD.put("spark.kubernetes.allocation.recoveryMode.enabled", none);
    INSTEAD.put("spark.kubernetes.executor.checkAllContainers", "Spark's container alone decides");
    INSTEAD.put("spark.kubernetes.executor.podDeletionCost", "Spark itself names the executors that end");
    INSTEAD.put(POD_NAME_PREFIX, "pods are named <app>-<instance>-exec-<id>, with app of posse.yaml");
    INSTEAD.put("spark.executor.failuresValidityInterval", "failures.window in posse.yaml");
  }

  private Settings() {}

  /** @throws IllegalArgumentException with every line that is missing */
  static void check(SparkConf conf) {
    List<String> missing = new ArrayList<>();
    NEEDED.forEach((key, value) -> {
      if (!conf.get(key, "").strip().equalsIgnoreCase(value)) {
        missing.add(key + "=" + value + (conf.contains(key) ? " (it is " + conf.get(key) + ")" : ""));
      }
    });
    if (!missing.isEmpty()) {
      throw new IllegalArgumentException("posse manages the executors, so Spark must not: set " + String.join(", ", missing));
    }
    if (waitsForClaims(conf) && !reusesClaims(conf)) {
      throw new IllegalArgumentException(WAIT + "=true needs " + REUSE + "=true: otherwise a claim made OnDemand is"
          + " deleted with its executor; set it to true, or the first one to false");
    }
    beside(conf);
  }

  /**
   * True if a claim made OnDemand stays for the next executor. Spark's default is true, too, but here it has to be
   * written: posse needs permissions for it, and Spark's shuffle recovery asks for the same.
   */
  static boolean reusesClaims(SparkConf conf) {
    return conf.getBoolean(REUSE, false);
  }

  /** True if a new executor waits for the claim of the lost one. */
  static boolean waitsForClaims(SparkConf conf) {
    return conf.getBoolean(WAIT, false);
  }

  /** One line with all keys that are set, have no effect, and were not told by an earlier call. */
  static Optional<String> untold(SparkConf conf) {
    List<String> keys = new ArrayList<>();
    INSTEAD.forEach((key, instead) -> {
      if (conf.contains(key) && !isSparksOwn(key, conf.get(key)) && TOLD.add(key)) {
        keys.add(key + " (" + instead + ")");
      }
    });
    return keys.isEmpty() ? Optional.empty() : Optional.of("no effect with posse: " + String.join(", ", keys));
  }

  /** Without a prefix of the user Spark sets one before its allocator starts: the application's name and 16 digits. */
  private static boolean isSparksOwn(String key, String value) {
    return key.equals(POD_NAME_PREFIX) && value.matches(".+-[0-9a-f]{16}");
  }

  /**
   * The pods beside which the executors are placed: `spark.posse.beside`, labels such as `app=shuffle,version=4.3`. With
   * `spark.posse.beside.required=false` their nodes are only preferred.
   */
  static Optional<ObjectNode> beside(SparkConf conf) {
    String text = conf.get(BESIDE, "").strip();
    if (text.isEmpty()) {
      return Optional.empty();
    }
    ObjectNode beside = Control.JSON.createObjectNode();
    ObjectNode labels = beside.putObject("labels");
    for (String label : text.split(",", -1)) {
      int at = label.indexOf('=');
      if (at < 0) {
        throw new IllegalArgumentException(BESIDE + " is " + text + ", and should be labels: KEY=VALUE,KEY=VALUE");
      }
      labels.put(label.substring(0, at).strip(), label.substring(at + 1).strip());
    }
    beside.put("required", conf.getBoolean(BESIDE + ".required", true));
    return Optional.of(beside);
  }

  /** The control API: `spark.posse.control`, else POSSE_CONTROL. */
  static Control control(SparkConf conf) {
    String address = conf.get("spark.posse.control", System.getenv().getOrDefault("POSSE_CONTROL", ""));
    if (address.isEmpty()) {
      throw new IllegalArgumentException(
          "no address of posse: start the driver with `posse run -- spark-submit ...`, or set spark.posse.control"
              + " or POSSE_CONTROL to unix:PATH or HOST:PORT");
    }
    String token = conf.get("spark.posse.control.tokenFile",
        System.getenv().getOrDefault("POSSE_CONTROL_TOKEN_FILE", ""));
    return new Control(address, token.isEmpty() ? null : token);
  }
}
