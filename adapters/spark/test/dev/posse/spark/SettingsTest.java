package dev.posse.spark;

import java.util.List;
import java.util.Optional;

import org.apache.spark.SparkConf;

/** Required keys, refused keys, keys without effect, and posse's address. */
final class SettingsTest {
  private SettingsTest() {}

  static void all() {
    needed();
    refused();
    withoutEffect();
    address();
    beside();
    heartbeats();
  }

  /** Half way between the interval and the timeout an executor is silent. */
  private static void heartbeats() {
    Heartbeats heartbeats = new Heartbeats(good().set("spark.network.timeout", "30"));
    for (String executor : List.of("1", "2", "3")) {
      heartbeats.begin(executor, 1_000);
    }
    heartbeats.heard("2", 11_000);
    Check.same(heartbeats.end("1", 21_000), false);
    Check.same(heartbeats.end("2", 31_001), true);
    Check.same(heartbeats.end("3", 21_001), true);
    // A late heartbeat, and executors that are not known.
    heartbeats.heard("1", 22_000);
    Check.same(heartbeats.end("1", 99_000), false);
    SparkConf conf = good().set("spark.executor.heartbeatInterval", "1s");
    heartbeats = new Heartbeats(conf.set("spark.storage.blockManagerHeartbeatTimeoutMs", "3000"));
    heartbeats.begin("4", 0);
    Check.same(heartbeats.end("4", 2_001), true);
  }

  private static void beside() {
    Check.same(Settings.beside(good()), Optional.empty());
    SparkConf conf = good().set("spark.posse.beside", "app=shuffle, example.com/version=4.3");
    String labels = "{\"labels\":{\"app\":\"shuffle\",\"example.com/version\":\"4.3\"},\"required\":";
    Check.same(Settings.beside(conf).orElseThrow().toString(), labels + "true}");
    conf.set("spark.posse.beside.required", "false");
    Check.same(Settings.beside(conf).orElseThrow().toString(), labels + "false}");
    Check.fails(() -> Settings.beside(good().set("spark.posse.beside", "app")), "spark.posse.beside is app", "KEY=VALUE");
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
    String reuse = "spark.kubernetes.driver.reusePersistentVolumeClaim";
    String wait = "spark.kubernetes.driver.waitToReusePersistentVolumeClaim";
    check(good().set(reuse, "true").set(wait, "true"));
    Check.same(Settings.reusesClaims(good()), false);
    Check.same(Settings.reusesClaims(good().set(reuse, "true")), true);
    Check.same(Settings.waitsForClaims(good().set(reuse, "true")), false);
    Check.fails(() -> check(good().set(wait, "true")), wait + "=true needs " + reuse + "=true");
    Check.fails(() -> check(good().set(wait, "true").set(reuse, "false")), wait + "=true needs");
  }

  private static void withoutEffect() {
    Check.same(Settings.untold(good()), Optional.empty());
    SparkConf conf = good().set("spark.kubernetes.allocation.maxPendingPods", "9")
        .set("spark.kubernetes.allocation.batch.size", "7");
    Check.same(Settings.untold(conf).orElseThrow(), "no effect with posse: "
        + "spark.kubernetes.allocation.batch.size (allocation.in_flight_max in posse.yaml), "
        + "spark.kubernetes.allocation.maxPendingPods (allocation.pending_max in posse.yaml)");
    String prefix = "spark.kubernetes.executor.podNamePrefix";
    // Spark sets this one itself.
    Check.same(Settings.untold(conf.set(prefix, "my-app-1-0-244607a2047f4b6d")), Optional.empty());
    // A second context in this process tells only what is new.
    conf.set(prefix, "mine");
    Check.same(Settings.untold(conf).orElseThrow(), "no effect with posse: "
        + prefix + " (pods are named <app>-<instance>-exec-<id>)");
    Check.same(Settings.untold(conf), Optional.empty());
  }

  private static void address() {
    Check.fails(() -> Settings.control(good()), "no address of posse", "spark.posse.control");
    Check.same(Settings.control(good().set("spark.posse.control", "unix:/a b")).address, "unix:/a b");
    for (String bad : List.of("nowhere", "127.0.0.1", "127.0.0.1:", "127.0.0.1:http", "127.0.0.1:65536", "192.0.2.1:1",
        "[2001:db8::7]:1")) {
      Check.fails(() -> new Control(bad, "/token"), bad, "unix:PATH or HOST:PORT");
    }
    Check.fails(() -> new Control("127.0.0.1:1", null), "asks for a token", "spark.posse.control.tokenFile");
    for (String good : List.of("[::1]:1", "127.0.0.9:1", "localhost:1")) {
      Check.same(new Control(good, "/token").address, good);
    }
  }
}
