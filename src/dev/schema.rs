//! Owns the types of the fields that pods and leases are made of, as far as the cluster looks at
//! them, and the words about a value of another type. Fields it does not know are let through.

use serde_json::Value;

use crate::dev::kind::Kind;
use crate::dev::quantity::{self, Quantity};

/// What a field may hold. `null` is always allowed and means absent.
#[derive(Debug)]
pub(crate) enum Shape {
    Boolean,
    Int32,
    Int64,
    List(&'static Self),
    MicroTime,
    Object(&'static str, &'static [(&'static str, Self)]),
    Quantities,
    Text,
    Texts,
    Time,
}

use Shape::{Boolean, Int32, Int64, List, MicroTime, Object, Quantities, Text, Texts, Time};

const OWNER: Shape = Object(
    "OwnerReference",
    &[
        ("apiVersion", Text),
        ("kind", Text),
        ("name", Text),
        ("uid", Text),
        ("controller", Boolean),
        ("blockOwnerDeletion", Boolean),
    ],
);

const METADATA: Shape = Object(
    "ObjectMeta",
    &[
        ("name", Text),
        ("generateName", Text),
        ("namespace", Text),
        ("uid", Text),
        ("resourceVersion", Text),
        ("creationTimestamp", Time),
        ("deletionTimestamp", Time),
        ("deletionGracePeriodSeconds", Int64),
        ("labels", Texts),
        ("annotations", Texts),
        ("ownerReferences", List(&OWNER)),
        ("finalizers", List(&Text)),
    ],
);

const KEY_REFERENCE: Shape =
    Object("KeySelector", &[("name", Text), ("key", Text), ("optional", Boolean)]);

const ENV: Shape = Object(
    "EnvVar",
    &[
        ("name", Text),
        ("value", Text),
        (
            "valueFrom",
            Object(
                "EnvVarSource",
                &[
                    (
                        "fieldRef",
                        Object("ObjectFieldSelector", &[("apiVersion", Text), ("fieldPath", Text)]),
                    ),
                    ("resourceFieldRef", Object("ResourceFieldSelector", &[("resource", Text)])),
                    ("configMapKeyRef", KEY_REFERENCE),
                    ("secretKeyRef", KEY_REFERENCE),
                ],
            ),
        ),
    ],
);

const CONTAINER: Shape = Object(
    "Container",
    &[
        ("name", Text),
        ("image", Text),
        ("command", List(&Text)),
        ("args", List(&Text)),
        ("workingDir", Text),
        ("env", List(&ENV)),
        ("imagePullPolicy", Text),
        (
            "ports",
            List(&Object(
                "ContainerPort",
                &[
                    ("name", Text),
                    ("containerPort", Int32),
                    ("hostPort", Int32),
                    ("protocol", Text),
                    ("hostIP", Text),
                ],
            )),
        ),
        (
            "resources",
            Object("ResourceRequirements", &[("limits", Quantities), ("requests", Quantities)]),
        ),
        (
            "volumeMounts",
            List(&Object(
                "VolumeMount",
                &[("name", Text), ("mountPath", Text), ("subPath", Text), ("readOnly", Boolean)],
            )),
        ),
        ("terminationMessagePath", Text),
        ("terminationMessagePolicy", Text),
    ],
);

const POD_SPEC: Shape = Object(
    "PodSpec",
    &[
        ("containers", List(&CONTAINER)),
        ("initContainers", List(&CONTAINER)),
        ("volumes", List(&Object("Volume", &[("name", Text)]))),
        ("restartPolicy", Text),
        ("terminationGracePeriodSeconds", Int64),
        ("activeDeadlineSeconds", Int64),
        ("dnsPolicy", Text),
        ("nodeName", Text),
        ("nodeSelector", Texts),
        ("serviceAccountName", Text),
        ("hostname", Text),
        ("subdomain", Text),
        ("schedulerName", Text),
        ("priorityClassName", Text),
        ("priority", Int32),
        ("enableServiceLinks", Boolean),
        ("hostNetwork", Boolean),
        (
            "tolerations",
            List(&Object(
                "Toleration",
                &[
                    ("key", Text),
                    ("operator", Text),
                    ("value", Text),
                    ("effect", Text),
                    ("tolerationSeconds", Int64),
                ],
            )),
        ),
    ],
);

const CONDITION: Shape = Object(
    "PodCondition",
    &[("type", Text), ("status", Text), ("reason", Text), ("message", Text)],
);

const POD_STATUS: Shape = Object(
    "PodStatus",
    &[
        ("phase", Text),
        ("reason", Text),
        ("message", Text),
        ("podIP", Text),
        ("hostIP", Text),
        ("startTime", Time),
        ("conditions", List(&CONDITION)),
        ("containerStatuses", List(&Object("ContainerStatus", &[("name", Text)]))),
        ("initContainerStatuses", List(&Object("ContainerStatus", &[("name", Text)]))),
    ],
);

const POD: Shape =
    Object("Pod", &[("metadata", METADATA), ("spec", POD_SPEC), ("status", POD_STATUS)]);

const LEASE: Shape = Object(
    "Lease",
    &[
        ("metadata", METADATA),
        (
            "spec",
            Object(
                "LeaseSpec",
                &[
                    ("holderIdentity", Text),
                    ("leaseDurationSeconds", Int32),
                    ("acquireTime", MicroTime),
                    ("renewTime", MicroTime),
                    ("leaseTransitions", Int32),
                ],
            ),
        ),
    ],
);

const PLAIN: Shape = Object("Object", &[("metadata", METADATA)]);

/// Checks a whole object; the error is the decoder's.
pub(crate) fn check(kind: Kind, value: &Value) -> Result<(), String> {
    let shape = if kind == Kind::Lease {
        &LEASE
    } else if kind == Kind::Pod {
        &POD
    } else {
        &PLAIN
    };
    check_shape(shape, value, kind.name(), "")
}

fn check_shape(shape: &Shape, value: &Value, owner: &str, path: &str) -> Result<(), String> {
    let wrong = |wanted: &str| {
        let found = match value {
            Value::Null => "null",
            Value::Bool(_) => "bool",
            Value::Number(_) => "number",
            Value::String(_) => "string",
            Value::Array(_) => "array",
            Value::Object(_) => "object",
        };
        Err(format!(
            "json: cannot unmarshal {found} into Go struct field {owner}.{path} of type {wanted}"
        ))
    };
    match (shape, value) {
        (_, Value::Null) | (Boolean, Value::Bool(_)) | (Text, Value::String(_)) => Ok(()),
        (Boolean, _) => wrong("bool"),
        (Int32, number) => match number.as_i64().map(i32::try_from) {
            Some(Ok(_)) => Ok(()),
            Some(Err(_)) | None => wrong("int32"),
        },
        (Int64, number) if number.is_i64() => Ok(()),
        (Int64, _) => wrong("int64"),
        (List(item), Value::Array(items)) => {
            items.iter().try_for_each(|value| check_shape(item, value, owner, path))
        }
        (List(item), _) => wrong(&format!("[]v1.{}", type_name(item))),
        (Object(name, fields), Value::Object(members)) => {
            members.iter().try_for_each(|(key, value)| {
                let Some((_, shape)) = fields.iter().find(|(field, _)| field == key) else {
                    return Ok(());
                };
                let dot = if path.is_empty() { "" } else { "." };
                check_shape(shape, value, name, &format!("{path}{dot}{key}"))
            })
        }
        (Object(name, _), _) => wrong(&format!("v1.{name}")),
        (Quantities, Value::Object(amounts)) => amounts.values().try_for_each(check_quantity),
        (Quantities, _) => wrong("v1.ResourceList"),
        (Text, _) => wrong("string"),
        (Texts, Value::Object(texts)) => {
            texts.values().try_for_each(|value| check_shape(&Text, value, owner, path))
        }
        (Texts, _) => wrong("map[string]string"),
        (MicroTime, Value::String(text)) => check_micro_time(text),
        (Time, Value::String(text)) => match text.parse::<jiff::Timestamp>() {
            Ok(_) => Ok(()),
            Err(_) => Err(format!(
                "parsing time {text:?} as \"2006-01-02T15:04:05Z07:00\": cannot parse {text:?} as \
                 \"2006\""
            )),
        },
        (Time, _) => wrong("v1.Time"),
        (MicroTime, _) => wrong("v1.MicroTime"),
    }
}

fn type_name(shape: &Shape) -> &'static str {
    match shape {
        Object(name, _) => name,
        Boolean | Int32 | Int64 | List(_) | MicroTime | Quantities | Text | Texts | Time => {
            "string"
        }
    }
}

/// Exactly six digits after the point: more, fewer or none are refused.
fn check_micro_time(text: &str) -> Result<(), String> {
    const DIGITS: usize = 6;
    const SECONDS_CHARS: usize = "2006-01-02T15:04:05".len();
    let rest = text.get(SECONDS_CHARS..).unwrap_or_default();
    let n_digits =
        rest.strip_prefix('.').map_or(0, |f| f.bytes().take_while(u8::is_ascii_digit).count());
    let (found, wanted) = match text.parse::<jiff::Timestamp>() {
        Ok(_) if n_digits == DIGITS => return Ok(()),
        Ok(_) => (rest, ".000000"),
        Err(_) => (text, "2006"),
    };
    Err(format!(
        "parsing time {text:?} as \"2006-01-02T15:04:05.000000Z07:00\": cannot parse {found:?} as \
         {wanted:?}"
    ))
}

/// An amount is a text or a bare number.
fn check_quantity(value: &Value) -> Result<(), String> {
    let text = match value {
        Value::String(text) => text.clone(),
        Value::Number(number) => number.to_string(),
        Value::Null => return Ok(()),
        Value::Bool(_) | Value::Array(_) | Value::Object(_) => value.to_string(),
    };
    match Quantity::parse(&text) {
        Some(_) => Ok(()),
        None => Err(quantity::SYNTAX.to_owned()),
    }
}
