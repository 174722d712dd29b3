//! Gangs that a scheduler starts together: what each of them needs in the pods, and its PodGroup.

use serde_json::{Map, Value, json};

use super::{PodContext, PodSettings};
use crate::k8s::labels;
use posse_encoding::amounts::{Amounts, pod_requests};

/// The scheduler that starts the executors of a gang together.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum GangKind {
    /// The scheduler of Kubernetes (KEP-4671).
    Native,
    /// The scheduler of Volcano.
    Volcano,
    /// The plugin Coscheduling (kubernetes-sigs/scheduler-plugins).
    Coscheduling,
    /// The scheduler of Apache YuniKorn.
    Yunikorn,
}

/// The gang of a group's pods.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGang {
    pub kind: GangKind,
    /// How many pods must start together.
    pub min: u32,
    /// How long a scheduler keeps room for an incomplete gang, seconds.
    pub timeout_s: u64,
    /// The scheduler's queue.
    pub queue: Option<String>,
    /// What a pod takes from a node as the server would create it. None: as the template says.
    pub as_created: Option<Amounts>,
}

impl PodGang {
    /// Its scheduler keeps room for pods as large as it is told.
    pub fn is_told_what_is_added(&self) -> bool {
        self.kind == GangKind::Yunikorn
    }
}

/// A PodGroup that is created before the first pod of its group.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PodGroup {
    /// The group of APIs, in whatever version the server has.
    pub api: &'static str,
    /// Without `apiVersion`.
    pub object: Value,
}

/// The groups of APIs with PodGroups that posse makes.
pub const POD_GROUP_APIS: [&str; 3] = [NATIVE_API, VOLCANO_API, COSCHEDULING_API];
const NATIVE_API: &str = "scheduling.k8s.io";
const VOLCANO_API: &str = "scheduling.volcano.sh";
const COSCHEDULING_API: &str = "scheduling.x-k8s.io";
/// Annotation: the PodGroup of Volcano.
const VOLCANO_GROUP: &str = "scheduling.k8s.io/group-name";
/// Label: the PodGroup of Coscheduling.
const COSCHEDULING_GROUP: &str = "scheduling.x-k8s.io/pod-group";
/// Annotations: the groups of tasks of YuniKorn, and which of them the pod belongs to.
const YUNIKORN_TASK_GROUP: &str = "yunikorn.apache.org/task-group-name";
const YUNIKORN_TASK_GROUPS: &str = "yunikorn.apache.org/task-groups";
const YUNIKORN_PARAMETERS: &str = "yunikorn.apache.org/schedulingPolicyParameters";
/// What gangs write under names of others.
pub const OWN_KEYS: [&str; 5] = [
    VOLCANO_GROUP,
    COSCHEDULING_GROUP,
    YUNIKORN_TASK_GROUP,
    YUNIKORN_TASK_GROUPS,
    YUNIKORN_PARAMETERS,
];
/// The one group of tasks of an application of YuniKorn.
const YUNIKORN_TASKS: &str = "executors";

impl GangKind {
    /// The group of APIs of its PodGroups, if it needs one.
    pub fn pod_group_api(self) -> Option<&'static str> {
        match self {
            Self::Yunikorn => None,
            Self::Native => Some(NATIVE_API),
            Self::Volcano => Some(VOLCANO_API),
            Self::Coscheduling => Some(COSCHEDULING_API),
        }
    }
}

impl PodContext {
    /// These pods once more if their scheduler has to be told what the server adds to them: the limits of a LimitRange,
    /// the overhead of a RuntimeClass, the side-car of a webhook. `created`: the answer to a dry run of one of them.
    pub fn as_created(&self, created: &[u8]) -> Option<Self> {
        let gang = self.settings.gang.as_ref().filter(|gang| gang.is_told_what_is_added())?;
        let created: Value = serde_json::from_slice(created).ok()?;
        let as_created = Some(pod_requests(created["spec"].as_object()?));
        let gang = Some(PodGang { as_created, ..gang.clone() });
        let settings = PodSettings { gang, ..self.settings.clone() };
        Some(Self { settings, ..self.clone() })
    }

    /// The PodGroup of these pods, if their scheduler needs one.
    pub fn pod_group(&self) -> Option<PodGroup> {
        let gang = self.settings.gang.as_ref()?;
        let min = gang.min;
        let api = gang.kind.pod_group_api()?;
        let spec = match gang.kind {
            GangKind::Yunikorn => return None,
            GangKind::Native => json!({"schedulingPolicy": {"gang": {"minCount": min}}}),
            GangKind::Volcano => {
                let mut spec = json!({"minMember": min});
                if let Some(queue) = &gang.queue {
                    spec["queue"] = json!(queue);
                }
                spec
            }
            GangKind::Coscheduling => {
                json!({"minMember": min, "scheduleTimeoutSeconds": gang.timeout_s})
            }
        };
        let mut metadata = json!({
            "name": self.joint_name(),
            "labels": {
                labels::APP: self.app, labels::INSTANCE: self.instance, labels::GROUP: self.group,
                labels::MANAGED_BY.0: labels::MANAGED_BY.1,
            },
        });
        if let Some(owner) = &self.instance_owner {
            metadata["ownerReferences"] = json!([owner]);
        }
        let mut object = json!({"kind": "PodGroup", "metadata": metadata, "spec": spec});
        self.common.lay_under_object(&mut object);
        Some(PodGroup { api, object })
    }
}

/// What a gang needs in its pods: labels, annotations, fields of the spec. A scheduler that the template names stays.
pub(super) fn mark(
    context: &PodContext,
    metadata: &mut Map<String, Value>,
    spec: &mut Map<String, Value>,
) {
    let Some(gang) = &context.settings.gang else { return };
    let name = json!(context.joint_name());
    let mut set = |list: &str, key: &str, value: Value| {
        if let Some(list) = metadata.get_mut(list).and_then(Value::as_object_mut) {
            list.insert(key.to_owned(), value);
        }
    };
    match gang.kind {
        GangKind::Native => {
            spec.insert("schedulingGroup".to_owned(), json!({"podGroupName": name}));
        }
        GangKind::Volcano => {
            name_scheduler(spec, "volcano");
            set("annotations", VOLCANO_GROUP, name);
        }
        GangKind::Coscheduling => set("labels", COSCHEDULING_GROUP, name),
        GangKind::Yunikorn => {
            name_scheduler(spec, "yunikorn");
            set("labels", "applicationId", name);
            if let Some(queue) = &gang.queue {
                set("labels", "queue", json!(queue));
            }
            // The pod that takes the place of a placeholder needs as much.
            let each = gang.as_created.clone().unwrap_or_else(|| pod_requests(spec));
            let tasks = json!([{
                "name": YUNIKORN_TASKS, "minMember": gang.min, "minResource": each.json(),
            }]);
            let wait = format!("placeholderTimeoutInSeconds={}", gang.timeout_s);
            let parameters = format!("{wait} gangSchedulingStyle=Hard");
            set("annotations", YUNIKORN_TASK_GROUP, json!(YUNIKORN_TASKS));
            set("annotations", YUNIKORN_TASK_GROUPS, json!(tasks.to_string()));
            set("annotations", YUNIKORN_PARAMETERS, json!(parameters));
        }
    }
}

fn name_scheduler(spec: &mut Map<String, Value>, name: &str) {
    if spec.get("schedulerName").is_none_or(Value::is_null) {
        spec.insert("schedulerName".to_owned(), json!(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pod::build::OwnerRef;
    use crate::pod::build::tests::{context, rendered};
    use crate::pod::template::Template;

    const POD: &str = "{spec: {schedulerName: SCHEDULER, containers: [\
        {name: a, image: b, resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {cpu: 1, gpu/x: 2}}}, \
        {name: c, image: d, resources: {requests: {cpu: 1}}}]}}";

    /// The pod's labels, annotations and spec, and the PodGroup, of a gang of three.
    fn made(kind: GangKind, scheduler: &str) -> (Value, Option<PodGroup>) {
        let queue = matches!(kind, GangKind::Volcano | GangKind::Yunikorn);
        let queue = queue.then(|| "team-a".to_owned());
        let gang = Some(PodGang { kind, min: 3, timeout_s: 90, queue, as_created: None });
        let context = PodContext {
            app: "shop".to_owned(),
            instance: "one".to_owned(),
            group: "w".to_owned(),
            settings: PodSettings { gang, ..PodSettings::default() },
            ..context()
        };
        let template = Template::parse("t.yaml", &POD.replace("SCHEDULER", scheduler)).unwrap();
        (rendered(&template.compile(&context).unwrap()), context.pod_group())
    }

    #[test]
    fn each_scheduler_gets_what_it_needs() {
        let name = json!("shop-one-w");
        let at = |pod: &Value, path: &str| pod.pointer(path).cloned().unwrap_or_default();
        let yunikorn = "/metadata/annotations/yunikorn.apache.org~1";
        let tasks = r#"[{"minMember":3,"minResource":{"cpu":"1500m","gpu/x":"2","memory":"1Gi"},"name":"executors"}]"#;
        let parameters = "placeholderTimeoutInSeconds=90 gangSchedulingStyle=Hard";
        for (kind, want) in [
            (
                GangKind::Native,
                vec![
                    ("/spec/schedulingGroup/podGroupName", name.clone()),
                    ("/spec/schedulerName", Value::Null),
                ],
            ),
            (
                GangKind::Volcano,
                vec![
                    ("/metadata/annotations/scheduling.k8s.io~1group-name", name.clone()),
                    ("/spec/schedulerName", json!("volcano")),
                ],
            ),
            (
                GangKind::Coscheduling,
                vec![
                    ("/metadata/labels/scheduling.x-k8s.io~1pod-group", name.clone()),
                    ("/spec/schedulerName", Value::Null),
                ],
            ),
            (
                GangKind::Yunikorn,
                vec![
                    ("/metadata/labels/applicationId", name.clone()),
                    ("/metadata/labels/queue", json!("team-a")),
                    ("/spec/schedulerName", json!("yunikorn")),
                    (&format!("{yunikorn}task-group-name"), json!("executors")),
                    (&format!("{yunikorn}task-groups"), json!(tasks)),
                    (&format!("{yunikorn}schedulingPolicyParameters"), json!(parameters)),
                ],
            ),
        ] {
            let (pod, _) = made(kind, "null");
            for (path, want) in want {
                assert_eq!(at(&pod, path), want, "{kind:?} {path}");
            }
            let (pod, _) = made(kind, "mine");
            assert_eq!(at(&pod, "/spec/schedulerName"), "mine", "{kind:?}");
        }
    }

    #[test]
    fn a_scheduler_that_needs_a_pod_group_gets_one() {
        for (kind, want) in [
            (GangKind::Yunikorn, None),
            (
                GangKind::Native,
                Some(("scheduling.k8s.io", json!({"schedulingPolicy": {"gang": {"minCount": 3}}}))),
            ),
            (
                GangKind::Volcano,
                Some(("scheduling.volcano.sh", json!({"minMember": 3, "queue": "team-a"}))),
            ),
            (
                GangKind::Coscheduling,
                Some((
                    "scheduling.x-k8s.io",
                    json!({"minMember": 3, "scheduleTimeoutSeconds": 90}),
                )),
            ),
        ] {
            let (_, group) = made(kind, "null");
            let found = group.as_ref().map(|group| (group.api, group.object["spec"].clone()));
            assert_eq!(found, want, "{kind:?}");
            if let Some(PodGroup { object, .. }) = group {
                assert_eq!(
                    (&object["kind"], &object["metadata"]["name"]),
                    (&json!("PodGroup"), &json!("shop-one-w"))
                );
                assert_eq!(object["metadata"]["labels"]["posse.dev/app"], "shop");
            }
        }
    }

    #[test]
    fn a_placeholder_is_as_large_as_the_pod_that_the_server_creates() {
        let gang = |kind| PodGang { kind, min: 3, timeout_s: 1, queue: None, as_created: None };
        let context_of = |kind| PodContext {
            settings: PodSettings { gang: Some(gang(kind)), ..PodSettings::default() },
            ..context()
        };
        let text = "{spec: {containers: [{name: a, image: b, resources: {requests: {cpu: 1, memory: 1Gi}}}],
            initContainers: [{name: proxy, restartPolicy: Always, resources: {requests: {cpu: 500m, memory: 512Mi}}},
                {name: fetch, resources: {requests: {memory: 4Gi}}}]}}";
        let template = Template::parse("t.yaml", text).unwrap();
        let pod = |context: &PodContext| rendered(&template.compile(context).unwrap());
        let told = |pod: &Value| pod["metadata"]["annotations"][YUNIKORN_TASK_GROUPS].to_string();
        let yunikorn = context_of(GangKind::Yunikorn);
        let mut created = pod(&yunikorn);
        assert!(
            told(&created).contains(r#"{\"cpu\":\"1500m\",\"memory\":\"4608Mi\"}"#),
            "{created}"
        );
        created["spec"]["overhead"] = json!({"memory": "128Mi"});
        let again = yunikorn.as_created(created.to_string().as_bytes()).unwrap();
        let again = told(&pod(&again));
        assert!(again.contains(r#"{\"cpu\":\"1500m\",\"memory\":\"4736Mi\"}"#), "{again}");
        assert!(context_of(GangKind::Volcano).as_created(created.to_string().as_bytes()).is_none());
    }

    /// The garbage collector deletes the PodGroup with the driver's pod.
    #[test]
    fn a_pod_group_belongs_to_the_driver() {
        let gang = Some(PodGang {
            kind: GangKind::Native,
            min: 3,
            timeout_s: 1,
            queue: None,
            as_created: None,
        });
        let owner = OwnerRef::pod("driver", "u1");
        let settings = PodSettings { gang, ..PodSettings::default() };
        let context = PodContext { settings, instance_owner: Some(owner), ..context() };
        let group = context.pod_group().unwrap();
        assert_eq!(group.object["metadata"]["ownerReferences"][0]["uid"], "u1");
    }
}
