package dev.posse.spark;

import java.util.List;

import org.apache.spark.SparkConf;

/** Required keys, refused keys, keys without effect, and posse's address. */
final class SettingsTest {
  private SettingsTest() {}

  static void all() {
    needed();
    refused();
    withoutEffect();
    address();
  }

  private static SparkConf good() {
    return new SparkConf(false)
        .set("spark.kubernetes.executor.deleteOnTermination", "False")
        .set("spark.executor.maxNumFailures", " 2147483647 ")
        .set("spark.kubernetes.executor.enableApiWatcher", "false");
  }

  private static Void check(SparkConf conf) {
    Settings.check(conf);
    return null;
  }

  private static void needed() {
    check(good());
    Check.fails(() -> check(new SparkConf(false)), "spark.kubernetes.executor.deleteOnTermination=false",
        "spark.executor.maxNumFailures=2147483647", "spark.kubernetes.executor.enableApiWatcher=false");
    for (String key : List.of("spark.kubernetes.executor.deleteOnTermination", "spark.executor.maxNumFailures",
        "spark.kubernetes.executor.enableApiWatcher")) {
      Check.fails(() -> check(good().remove(key)), "set " + key);
      Check.fails(() -> check(good().set(key, "3")), "set " + key, "(it is 3)");
    }
  }

  private static void refused() {
    for (String key : List.of("spark.kubernetes.driver.reusePersistentVolumeClaim",
        "spark.kubernetes.driver.waitToReusePersistentVolumeClaim")) {
      check(good().set(key, "false"));
      Check.fails(() -> check(good().set(key, "true")), key + "=true", "set it to false");
    }
  }

  private static void withoutEffect() {
    Check.same(Settings.untold(good()), List.of());
    SparkConf conf = good().set("spark.kubernetes.allocation.batch.size", "7");
    Check.same(Settings.untold(conf), List.of(
        "spark.kubernetes.allocation.batch.size has no effect with posse: allocation.in_flight_max in posse.yaml"));
    // A second context in this process tells only what is new.
    String prefix = "spark.kubernetes.executor.podNamePrefix";
    conf.set(prefix, "mine");
    // spark-submit sets this one itself in cluster mode.
    Check.same(Settings.untold(conf.clone().set("spark.kubernetes.submitInDriver", "true")), List.of());
    Check.same(Settings.untold(conf), List.of(
        prefix + " has no effect with posse: pods are named <app>-<instance>-exec-<id>, with app of posse.yaml"));
    Check.same(Settings.untold(conf), List.of());
  }

  private static void address() {
    Check.fails(() -> Settings.control(good()), "no address of posse", "spark.posse.control");
    Check.same(Settings.control(good().set("spark.posse.control", "unix:/a b")).address, "unix:/a b");
    for (String bad : List.of("nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536")) {
      Check.fails(() -> new Control(bad, "/token"), bad, "unix:PATH or HOST:PORT");
    }
    Check.fails(() -> new Control("127.0.0.1:1", null), "asks for a token", "spark.posse.control.tokenFile");
    Check.same(new Control("[::1]:1", "/token").address, "[::1]:1");
  }
}
