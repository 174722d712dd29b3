// A pod's life through Fabric8's client, which Spark uses, with the kubeconfig that `posse dev` wrote.
// Its watches are web sockets.

import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.client.*;
import io.fabric8.kubernetes.client.dsl.ExecWatch;
import io.fabric8.kubernetes.client.dsl.PodResource;
import java.io.*;
import java.nio.charset.StandardCharsets;
import java.nio.file.*;
import java.util.*;
import java.util.concurrent.*;

public class Fabric8Client {
  static void check(String what, Object got, Object want) {
    if (!Objects.equals(got, want)) throw new AssertionError(what + ": got " + got + ", want " + want);
  }

  static void until(BlockingQueue<String> seen, String wanted) throws InterruptedException {
    for (String event = ""; !event.equals(wanted); ) {
      event = seen.poll(60, TimeUnit.SECONDS);
      if (event == null) throw new AssertionError("waited 60 s for " + wanted);
    }
  }

  public static void main(String[] args) throws Exception {
    Config config = Config.fromKubeconfig(Files.readString(Path.of(System.getenv("DEV_KUBECONFIG"))));
    config.setNamespace(System.getenv("NS"));
    try (KubernetesClient client = new KubernetesClientBuilder().withConfig(config).build()) {
      check("before", client.pods().list().getItems(), List.of());
      BlockingQueue<String> seen = new LinkedBlockingQueue<>();
      Watch watch = client.pods().withLabel("app", "served").watch(new Watcher<Pod>() {
        public void eventReceived(Action action, Pod pod) {
          boolean ready = pod.getStatus().getConditions().stream()
              .anyMatch(c -> c.getType().equals("Ready") && c.getStatus().equals("True"));
          seen.add(action + (ready ? " ready" : ""));
        }
        public void onClose(WatcherException cause) { seen.add("closed: " + cause); }
      });
      try (InputStream manifest = new FileInputStream(System.getenv("SERVED"))) {
        client.pods().load(manifest).create();
      }
      until(seen, "MODIFIED ready");
      check("listed", client.pods().list().getItems().size(), 1);
      PodResource pod = client.pods().withName("served");
      check("log", pod.getLog(), "begun\n");

      ByteArrayOutputStream out = new ByteArrayOutputStream(), err = new ByteArrayOutputStream();
      try (ExecWatch command = pod.redirectingInput().writingOutput(out).writingError(err)
          .exec("sh", "-c", "read line; echo got $line; echo err >&2; exit 7")) {
        command.getInput().write("in\n".getBytes(StandardCharsets.UTF_8));
        command.getInput().flush();
        check("exit code", command.exitCode().get(60, TimeUnit.SECONDS), 7);
      }
      check("output", out.toString() + err, "got in\nerr\n");

      // File copies are commands too.
      Path file = Files.writeString(Files.createTempFile("fabric8", ""), "x".repeat(300_000));
      check("upload", pod.file(System.getenv("COPY")).upload(file), true);
      check("copy", Files.size(Path.of(System.getenv("COPY"))), 300_000L);
      Files.delete(file);

      pod.delete();
      until(seen, "DELETED");
      watch.close();
      System.out.println("fabric8 ok");
    }
  }
}
