package dev.posse.spark;

import java.util.HashMap;
import java.util.Map;

import org.apache.spark.SparkConf;

/**
 * When Spark heard of each executor last. Spark gives one reason, "Executor killed by driver.", for each executor that it
 * ends, whether it was idle or its heartbeats were missed. Times are Unix times in milliseconds.
 */
final class Heartbeats {
  /** Between the interval of the heartbeats and the time after which Spark ends the executor. */
  private final long silentMillis;
  private final Map<String, Long> heardAt = new HashMap<>();

  Heartbeats(SparkConf conf) {
    long timeout = conf.getTimeAsMs("spark.storage.blockManagerHeartbeatTimeoutMs",
        conf.getTimeAsSeconds("spark.network.timeout", "120s") + "s");
    silentMillis = (timeout + conf.getTimeAsMs("spark.executor.heartbeatInterval", "10s")) / 2;
  }

  void begin(String executor, long now) {
    heardAt.put(executor, now);
  }

  /** A heartbeat. It may arrive after the executor's end. */
  void heard(String executor, long now) {
    heardAt.replace(executor, now);
  }

  /** True if the executor was silent for so long that this is why Spark has ended it. */
  boolean end(String executor, long now) {
    Long last = heardAt.remove(executor);
    return last != null && now - last > silentMillis;
  }
}
