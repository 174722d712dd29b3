package dev.posse.spark;

import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Optional;
import java.util.Set;
import java.util.TreeMap;

import com.fasterxml.jackson.databind.node.ObjectNode;

import io.fabric8.kubernetes.api.model.Container;
import io.fabric8.kubernetes.api.model.HasMetadata;
import io.fabric8.kubernetes.api.model.Pod;
import io.fabric8.kubernetes.client.Config;
import io.fabric8.kubernetes.client.KubernetesClient;
import io.fabric8.kubernetes.client.KubernetesClientBuilder;
import io.fabric8.kubernetes.client.dsl.base.PatchContext;
import io.fabric8.kubernetes.client.dsl.base.PatchType;

import org.apache.spark.SecurityManager;
import org.apache.spark.SparkConf;
import org.apache.spark.SparkContext;
import org.apache.spark.SparkEnv;
import org.apache.spark.SparkException;
import org.apache.spark.deploy.k8s.KubernetesConf$;
import org.apache.spark.deploy.k8s.KubernetesExecutorConf;
import org.apache.spark.deploy.k8s.KubernetesExecutorSpec;
import org.apache.spark.deploy.k8s.submit.KubernetesClientUtils;
import org.apache.spark.resource.ResourceProfile;
import org.apache.spark.scheduler.ExecutorDecommission;
import org.apache.spark.scheduler.ExecutorDecommissionInfo;
import org.apache.spark.scheduler.ExecutorExited;
import org.apache.spark.scheduler.SparkListener;
import org.apache.spark.scheduler.SparkListenerApplicationEnd;
import org.apache.spark.scheduler.SparkListenerExecutorAdded;
import org.apache.spark.scheduler.SparkListenerExecutorMetricsUpdate;
import org.apache.spark.scheduler.SparkListenerExecutorRemoved;
import org.apache.spark.scheduler.cluster.k8s.AbstractPodsAllocator;
import org.apache.spark.scheduler.cluster.k8s.ExecutorPodsSnapshotsStore;
import org.apache.spark.scheduler.cluster.k8s.KubernetesClusterSchedulerBackend;
import org.apache.spark.scheduler.cluster.k8s.KubernetesExecutorBuilder;
import org.apache.spark.storage.BlockManagerId;
import org.apache.spark.util.Clock;

import org.slf4j.Logger;
import org.slf4j.LoggerFactory;

import scala.Option;
import scala.collection.Iterator;

/**
 * A pods allocator for Spark that lets posse manage the executors: one group for each resource profile.
 * Spark's calls only change memory; a {@link Link} calls posse.
 *
 * <p>Set by {@code spark.kubernetes.allocation.pods.allocator=dev.posse.spark.PosseAllocator}.
 */
public final class PosseAllocator extends AbstractPodsAllocator {
  private static final Logger LOG = LoggerFactory.getLogger(PosseAllocator.class);
  static final String RECOVERY = "spark.kubernetes.allocation.recoveryMode.enabled";

  private final SparkConf conf;
  private final SecurityManager security;
  private final KubernetesExecutorBuilder builder;
  private final KubernetesClient client;
  private final String namespace;
  private final Option<Pod> driverPod;
  private KubernetesClusterSchedulerBackend backend;
  private Link link;

  /** The constructor that Spark calls. */
  public PosseAllocator(SparkConf conf, SecurityManager security, KubernetesExecutorBuilder builder,
      KubernetesClient client, ExecutorPodsSnapshotsStore snapshots, Clock clock) {
    this.conf = conf;
    this.security = security;
    this.builder = builder;
    this.client = client;
    this.namespace = conf.get("spark.kubernetes.namespace", "default");
    this.driverPod = findDriverPod(conf.get("spark.kubernetes.driver.pod.name", ""));
  }

  private Option<Pod> findDriverPod(String name) {
    if (name.isEmpty()) {
      return Option.empty();
    }
    Pod pod = client.pods().inNamespace(namespace).withName(name).get();
    if (pod == null) {
      throw new IllegalArgumentException(
          "there is no pod " + name + " in " + namespace + ", which spark.kubernetes.driver.pod.name names");
    }
    return Option.apply(pod);
  }

  @Override
  public Option<Pod> driverPod() {
    return driverPod;
  }

  /** Fails, and ends the application, if posse is unreachable or refuses the executors' pod. */
  @Override
  public void start(String appId, KubernetesClusterSchedulerBackend backend) {
    // The context is private to Spark, and at this point there is no other way to get it.
    SparkContext context =
        backend.org$apache$spark$scheduler$cluster$CoarseGrainedSchedulerBackend$$scheduler.sc();
    this.backend = backend;
    try {
      Shims.check(context.version());
      Settings.check(conf);
      Settings.untold(conf).ifPresent(LOG::warn);
      Link.Engine engine = new Engine(appId, backend);
      link = new Link(Settings.control(conf), namespace, engine);
      ResourceProfile profile = context.resourceProfileManager().defaultResourceProfile();
      link.start(profile.id());
      labelDriver(appId);
    } catch (IllegalArgumentException e) {
      throw sparkException(e.getMessage(), e);
    } catch (LinkageError e) {
      throw sparkException("the adapter does not fit Spark " + context.version() + ": use the jar of a newer posse (" + e
          + ")", e);
    }
    context.addSparkListener(new End());
    Runtime.getRuntime().addShutdownHook(new Thread(this::end, "posse-end"));
  }

  /**
   * Gives the driver's pod the labels that Spark's own cluster mode gives it. The template of its Job cannot have the id:
   * each driver of the Job is an application of its own.
   */
  private void labelDriver(String appId) {
    if (driverPod.isEmpty()) {
      return;
    }
    String name = driverPod.get().getMetadata().getName();
    Map<String, String> labels = Map.of("spark-role", "driver", "spark-app-selector", appId,
        "spark-app-name", KubernetesConf$.MODULE$.getAppNameLabel(conf.get("spark.app.name")));
    Map<String, String> there = driverPod.get().getMetadata().getLabels();
    if (there != null && there.entrySet().containsAll(labels.entrySet())) {
      return;
    }
    try {
      ObjectNode patch = Control.JSON.createObjectNode();
      ObjectNode metadata = patch.putObject("metadata").putObject("labels");
      labels.forEach(metadata::put);
      client.pods().inNamespace(namespace).withName(name).patch(PatchContext.of(PatchType.JSON_MERGE), patch.toString());
    } catch (RuntimeException e) {
      LOG.warn("The driver's pod {} has no labels of Spark ({}): {}", name, labels, e.getMessage());
    }
  }

  /** Wraps the error in a checked SparkException, which stops the start of the context. */
  private static RuntimeException sparkException(String what, Throwable cause) {
    return PosseAllocator.<RuntimeException>sneak(new SparkException("posse: " + what, cause));
  }

  @SuppressWarnings("unchecked")
  private static <T extends Throwable> T sneak(Throwable e) throws T {
    throw (T) e;
  }

  @Override
  public void setTotalExpectedExecutors(scala.collection.immutable.Map<ResourceProfile, Object> total) {
    Map<Integer, Integer> targets = new TreeMap<>();
    Shims.list(total).forEach(entry -> targets.put(entry._1().id(), (Integer) entry._2()));
    link.prefer(wantedNodes());
    link.want(targets);
  }

  /** Where tasks that wait have their data. Spark counts them only with dynamic allocation. */
  private Map<Integer, Map<String, Integer>> wantedNodes() {
    Map<Integer, Map<String, Integer>> nodes = new TreeMap<>();
    Shims.list(backend.rpHostToLocalTaskCount()).forEach(profile -> {
      Map<String, Integer> tasks = new TreeMap<>();
      Shims.list(profile._2()).forEach(host -> tasks.put(host._1(), (Integer) host._2()));
      nodes.put((Integer) profile._1(), Locality.weights(tasks));
    });
    return nodes;
  }

  @Override
  public boolean isDeleted(String executorId) {
    return link.hasEnded(executorId);
  }

  /** Spark calls this only if it deletes the executors itself; otherwise the listener ends them. */
  @Override
  public void stop(String appId) {
    end();
  }

  /** Only the first call has an effect. */
  private void end() {
    if (link != null && link.end()) {
      deleteConfigMap();
    }
  }

  /** Spark does not delete it if it does not delete the executors. Spark's client may be closed already. */
  private void deleteConfigMap() {
    if (conf.getBoolean("spark.kubernetes.executor.disableConfigMap", false)) {
      return;
    }
    String name = KubernetesClientUtils.configMapNameExecutor();
    Config config = client.getConfiguration();
    try (KubernetesClient own = new KubernetesClientBuilder().withConfig(config).build()) {
      own.configMaps().inNamespace(namespace).withName(name).delete();
    } catch (RuntimeException e) {
      LOG.warn("The ConfigMap {} in {} could not be deleted and stays: {}", name, namespace, e.toString());
    }
  }

  /** Events that Spark does not report to its allocator. */
  private final class End extends SparkListener {
    private final Heartbeats heartbeats = new Heartbeats(conf);

    @Override
    public void onApplicationEnd(SparkListenerApplicationEnd event) {
      end();
    }

    @Override
    public void onExecutorAdded(SparkListenerExecutorAdded event) {
      heartbeats.begin(event.executorId(), event.time());
    }

    /** An executor's heartbeat. */
    @Override
    public void onExecutorMetricsUpdate(SparkListenerExecutorMetricsUpdate event) {
      heartbeats.heard(event.execId(), System.currentTimeMillis());
    }

    /** Executors stopped by dynamic allocation, timed out, or decommissioned. */
    @Override
    public void onExecutorRemoved(SparkListenerExecutorRemoved event) {
      boolean isSilent = heartbeats.end(event.executorId(), event.time());
      link.removed(event.executorId(), event.reason(), isSilent);
    }
  }

  /** The template of this profile's executors, and what else of Spark's keys a group has. */
  static ObjectNode render(SparkConf conf, SecurityManager security, KubernetesExecutorBuilder builder,
      KubernetesClient client, String appId, Option<Pod> driverPod, ResourceProfile profile) {
    KubernetesExecutorConf executor =
        KubernetesConf$.MODULE$.createExecutorConf(conf, Template.ID, appId, driverPod, profile.id());
    KubernetesExecutorSpec spec;
    try {
      spec = builder.buildFromFeatures(executor, security, client, profile);
    } catch (Exception e) {
      throw new IllegalArgumentException("Spark cannot build the executors' pod: " + e.getMessage(), e);
    }
    Container container = spec.pod().container();
    List<HasMetadata> resources = Shims.listOf(spec, "executorKubernetesResources");
    Optional<String> reusedBy = Settings.reusesClaims(conf) ? Optional.of(appId) : Optional.empty();
    ObjectNode group = Template.group(spec.pod().pod(), container, resources, reusedBy);
    if (Settings.waitsForClaims(conf)) {
      group.put("replace", "gone");
    }
    group.put("container", container.getName());
    Settings.beside(conf).ifPresent(beside -> group.set("beside", beside));
    return group;
  }

  /** Spark for the link. */
  private final class Engine implements Link.Engine {
    private final String appId;
    private final KubernetesClusterSchedulerBackend backend;

    private Engine(String appId, KubernetesClusterSchedulerBackend backend) {
      this.appId = appId;
      this.backend = backend;
    }

    @Override
    public ObjectNode group(int profileId) {
      ResourceProfile profile = backend.org$apache$spark$scheduler$cluster$CoarseGrainedSchedulerBackend$$scheduler
          .sc().resourceProfileManager().resourceProfileFromId(profileId);
      ObjectNode group = render(conf, security, builder, client, appId, driverPod, profile);
      // Spark chooses which running executors end, after it has lowered the target.
      group.put("scale_down", "pending");
      return group;
    }

    @Override
    public void tell(String line) {
      LOG.warn("posse: {}", line);
    }

    @Override
    public String page() {
      Option<String> page = backend.org$apache$spark$scheduler$cluster$CoarseGrainedSchedulerBackend$$scheduler
          .sc().uiWebUrl();
      return page.isDefined() ? page.get() : "";
    }

    @Override
    public List<String> executors() {
      return Shims.listOf(backend, "getExecutorIds");
    }

    @Override
    public void lost(String executor, int exitCode, boolean causedByApp, String why) {
      backend.doRemoveExecutor(executor, new ExecutorExited(exitCode, causedByApp, why));
    }

    /** As Spark's own allocator since 4.2: executors to come take one task at a time, unless the key says otherwise. */
    @Override
    public boolean recover() {
      boolean isNew = Shims.isSince(org.apache.spark.package$.MODULE$.SPARK_VERSION(), 4, 2) && !conf.contains(RECOVERY);
      if (isNew) {
        LOG.warn("An executor had too little memory: those to come take one task at a time ({})", RECOVERY);
        conf.set(RECOVERY, "true");
      }
      return isNew;
    }

    @Override
    public boolean decommissions() {
      return conf.getBoolean("spark.decommission.enabled", false);
    }

    /** Those whose block managers are registered, which they are a moment after the executors. */
    @Override
    public Set<String> takers() {
      Set<String> takers = new HashSet<>();
      Iterator<BlockManagerId> managers = SparkEnv.get().blockManager().master().getMemoryStatus().keysIterator();
      while (managers.hasNext()) {
        takers.add(managers.next().executorId());
      }
      takers.retainAll(executors());
      return takers;
    }

    /** posse replaces it, so Spark's own target stays as it is. */
    @Override
    public void ending(String executor, String why) {
      backend.decommissionExecutor(executor, new ExecutorDecommissionInfo(why, Option.empty()), false, false);
    }

    /** Spark logs a decommissioned executor as INFO, any other one that it did not stop itself as ERROR. */
    @Override
    public void ended(String executor, String why) {
      LOG.info("Executor {} was ended: {}", executor, why);
      backend.doRemoveExecutor(executor, new ExecutorDecommission(Option.empty(), why));
    }
  }
}
