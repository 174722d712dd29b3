package dev.posse.spark;

import java.util.Comparator;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.node.ObjectNode;

/** The nodes on which tasks that wait have their data, as Spark counts them by the name of the host. */
final class Locality {
  /** What posse takes in one call. */
  static final int NODES_MAX = 100;
  private static final int WEIGHT_MAX = 100;
  /** Names of nodes. Addresses are those of pods, mostly of executors with cached blocks. */
  private static final String NODE = "(?![0-9.]+$)[a-z0-9]([-a-z0-9.]*[a-z0-9])?";

  private Locality() {}

  /**
   * Weights from 1 to 100 by node: the node with the most tasks has 100.
   *
   * @param tasks how many tasks that wait have their data on a host
   */
  static Map<String, Integer> weights(Map<String, Integer> tasks) {
    List<Map.Entry<String, Integer>> nodes = tasks.entrySet().stream()
        .filter(host -> host.getKey().matches(NODE) && host.getValue() > 0)
        .sorted(Map.Entry.<String, Integer>comparingByValue(Comparator.reverseOrder()).thenComparing(Map.Entry.comparingByKey()))
        .limit(NODES_MAX).toList();
    Map<String, Integer> weights = new TreeMap<>();
    for (Map.Entry<String, Integer> node : nodes) {
      long most = nodes.get(0).getValue();
      weights.put(node.getKey(), (int) Math.max(1, WEIGHT_MAX * (long) node.getValue() / most));
    }
    return weights;
  }

  /** The body of the call that prefers these nodes. */
  static ObjectNode body(Map<String, Integer> weights) {
    ObjectNode body = Control.JSON.createObjectNode();
    ObjectNode prefer = body.putObject("nodes").putObject("prefer");
    weights.forEach(prefer::put);
    return body;
  }
}
