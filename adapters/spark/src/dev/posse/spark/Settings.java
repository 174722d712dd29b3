package dev.posse.spark;

import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.concurrent.ConcurrentHashMap;

import com.fasterxml.jackson.databind.node.ObjectNode;

import org.apache.spark.SparkConf;

import scala.Tuple2;

/** The application's configuration: required keys, keys without effect, and the address of posse. */
final class Settings {
  private static final String BESIDE = "spark.posse.beside";
  private static final String REUSE = "spark.kubernetes.driver.reusePersistentVolumeClaim";
  private static final String WAIT = "spark.kubernetes.driver.waitToReusePersistentVolumeClaim";
  /** Keys that this process has told about: a second context would tell the same again. */
  private static final Set<String> TOLD = ConcurrentHashMap.newKeySet();

  private Settings() {}

  /** @throws IllegalArgumentException with every line that is missing */
  static void check(SparkConf conf) {
    List<String> missing = new ArrayList<>();
    // Otherwise Spark and posse would both do the same work.
    for (Keys.Key key : Keys.ALL) {
      String name = key.name();
      if (!key.forced().isEmpty() && !conf.get(name, "").strip().equalsIgnoreCase(key.forced())) {
        missing.add(name + "=" + key.forced() + (conf.contains(name) ? " (it is " + conf.get(name) + ")" : ""));
      }
    }
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

  /** One line with all keys that are set, have no effect, and were not told by posse-spark-submit or an earlier call. */
  static Optional<String> untold(SparkConf conf) {
    TOLD.addAll(List.of(conf.get(Keys.TOLD, "").split(",")));
    Map<String, String> all = new HashMap<>();
    for (Tuple2<String, String> entry : conf.getAll()) {
      all.put(entry._1(), entry._2());
    }
    return Keys.withoutEffect(all, TOLD);
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
