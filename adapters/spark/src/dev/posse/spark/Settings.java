package dev.posse.spark;

import java.util.ArrayList;
import java.util.LinkedHashMap;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.spark.SparkConf;

/** Spark's configuration: required keys, keys without effect, and the address of posse. */
final class Settings {
  /** Without these Spark and posse would both do the same work. */
  private static final Map<String, String> NEEDED = new LinkedHashMap<>();
  /** Keys that have no effect with posse, and what to use instead. */
  private static final Map<String, String> INSTEAD = new LinkedHashMap<>();

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
    for (String key : List.of("spark.kubernetes.driver.reusePersistentVolumeClaim",
        "spark.kubernetes.driver.waitToReusePersistentVolumeClaim")) {
      if (conf.getBoolean(key, false)) {
        throw new IllegalArgumentException(
            key + "=true does not work with posse: a claim made OnDemand is deleted with its executor; set it to false");
      }
    }
  }

  /** One line for each key that is set, has no effect, and was not told by an earlier call. */
  static List<String> untold(SparkConf conf) {
    // In cluster mode spark-submit sets the prefix itself.
    boolean isClusterMode = conf.getBoolean("spark.kubernetes.submitInDriver", false);
    List<String> lines = new ArrayList<>();
    INSTEAD.forEach((key, instead) -> {
      if (conf.contains(key) && !(isClusterMode && key.equals(POD_NAME_PREFIX)) && TOLD.add(key)) {
        lines.add(key + " has no effect with posse: " + instead);
      }
    });
    return lines;
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
