//! Authorization by the roles and bindings in the store (RBAC). Used with `--rbac` only; without it
//! each request is allowed.

use serde_json::{Value, json};

use crate::apiserver::authn::{User, account_of};
use crate::schema::kind::{Key, Kind};
use crate::schema::status::{StatusError, go_quoted};
use crate::storage::State;
use crate::storage::object::{array_at, text_at};
use crate::storage::store::Store;
use posse_serve::Request;

const MASTERS: &str = "system:masters";
const GROUP: &str = "rbac.authorization.k8s.io";

/// The action to authorize.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Attributes {
    pub(crate) verb: String,
    pub(crate) namespace: String,
    pub(crate) group: String,
    /// Empty for a path that is not a resource's.
    pub(crate) resource: String,
    pub(crate) subresource: String,
    pub(crate) name: String,
    pub(crate) path: String,
}

impl Attributes {
    /// The attributes of a request, parsed from its path as kube-apiserver does.
    pub(crate) fn of(request: &Request) -> Self {
        let verb = request.method.to_ascii_lowercase();
        let path = request.path.clone();
        let no_resource = Self { verb, path, ..Self::default() };
        let segments: Vec<&str> =
            request.path.split('/').filter(|segment| !segment.is_empty()).collect();
        let (group, rest) = match segments.as_slice() {
            ["api", _, rest @ ..] => ("", rest),
            ["apis", group, _, rest @ ..] => (*group, rest),
            _ => return no_resource,
        };
        if rest.is_empty() {
            return no_resource;
        }
        let (namespace, rest) = match rest {
            ["namespaces", namespace] | ["namespaces", namespace, "status"] => (*namespace, rest),
            ["namespaces", namespace, rest @ ..] => (*namespace, rest),
            rest => ("", rest),
        };
        let at = |i: usize| rest.get(i).copied().unwrap_or_default().to_owned();
        let mut name = at(1);
        let selected = request.query("fieldSelector").unwrap_or_default();
        if name.is_empty()
            && let Some(selected) = selected.strip_prefix("metadata.name=")
            && !selected.contains(',')
        {
            selected.trim_start_matches('=').clone_into(&mut name);
        }
        let collection = at(1).is_empty();
        let verb = match request.method.as_str() {
            "GET" | "HEAD" if collection && super::options::flag(request, "watch") => "watch",
            "GET" | "HEAD" if collection => "list",
            "GET" | "HEAD" => "get",
            "POST" => "create",
            "PUT" => "update",
            "PATCH" => "patch",
            "DELETE" if collection => "deletecollection",
            "DELETE" => "delete",
            _ => "",
        };
        Self {
            verb: verb.to_owned(),
            namespace: namespace.to_owned(),
            group: group.to_owned(),
            resource: at(0),
            subresource: at(2),
            name,
            path: request.path.clone(),
        }
    }

    fn whole_resource(&self) -> String {
        match self.subresource.as_str() {
            "" => self.resource.clone(),
            subresource => format!("{}/{subresource}", self.resource),
        }
    }

    /// The 403 for a user without the permission.
    fn forbidden(&self, user: &User) -> StatusError {
        let who = format!("User {} cannot {}", go_quoted(&user.name), self.verb);
        if self.resource.is_empty() {
            return StatusError::not_allowed(
                "",
                "",
                "",
                &format!("{who} path {}", go_quoted(&self.path)),
            );
        }
        let place = match self.namespace.as_str() {
            "" => "at the cluster scope".to_owned(),
            namespace => format!("in the namespace {}", go_quoted(namespace)),
        };
        let what = format!(
            "{who} resource {} in API group {} {place}",
            go_quoted(&self.whole_resource()),
            go_quoted(&self.group)
        );
        StatusError::not_allowed(&self.resource, &self.group, &self.name, &what)
    }
}

/// Authorizes a request of `user`.
pub(crate) fn authorize(store: &Store, request: &Request, user: User) -> Result<User, StatusError> {
    if request.header("impersonate-user").is_some() {
        return Err(StatusError::not_allowed(
            "",
            "",
            "",
            "the embedded cluster has no impersonation",
        ));
    }
    let attributes = Attributes::of(request);
    match allows(store, &user, &attributes) {
        true => Ok(user),
        false => Err(attributes.forbidden(&user)),
    }
}

/// True if a user may do something.
pub(crate) fn allows(store: &Store, user: &User, wanted: &Attributes) -> bool {
    let is_master = user.groups.iter().any(|group| group == MASTERS);
    let in_cluster = || binds(store, user, Kind::ClusterRoleBinding, "", wanted);
    let namespace = wanted.namespace.as_str();
    let in_namespace = || binds(store, user, Kind::RoleBinding, namespace, wanted);
    is_master || in_cluster() || !namespace.is_empty() && in_namespace()
}

/// True if a role that is bound to the user permits it.
fn binds(store: &Store, user: &User, kind: Kind, place: &str, wanted: &Attributes) -> bool {
    store.objects(kind, place).any(|object| {
        let binding = object.value();
        if !array_at(&binding, "/subjects").iter().any(|subject| is_meant(subject, user, place)) {
            return false;
        }
        let name = text_at(&binding, "/roleRef/name");
        let role = match text_at(&binding, "/roleRef/kind") {
            "ClusterRole" => Key::new(Kind::ClusterRole, "", name),
            _ => Key::new(Kind::Role, place, name),
        };
        let role = store.get(&role).map(|role| role.value()).unwrap_or_default();
        array_at(&role, "/rules").iter().any(|rule| permits(rule, wanted))
    })
}

fn is_meant(subject: &Value, user: &User, namespace: &str) -> bool {
    let name = text_at(subject, "/name");
    match text_at(subject, "/kind") {
        "User" => user.name == name,
        "Group" => user.groups.iter().any(|group| group == name),
        "ServiceAccount" => {
            let of = match text_at(subject, "/namespace") {
                "" => namespace,
                given => given,
            };
            account_of(&user.name) == Some((of, name)) && !of.is_empty()
        }
        _ => false,
    }
}

fn permits(rule: &Value, wanted: &Attributes) -> bool {
    let has = |list: &str, fits: &dyn Fn(&str) -> bool| {
        array_at(rule, list).iter().filter_map(Value::as_str).any(fits)
    };
    let exactly = |text: &str, wanted: &str| text == "*" || text == wanted;
    if !has("/verbs", &|verb| exactly(verb, &wanted.verb)) {
        return false;
    }
    if wanted.resource.is_empty() {
        return has("/nonResourceURLs", &|url| {
            let start = url.strip_suffix('*').is_some_and(|start| wanted.path.starts_with(start));
            exactly(url, &wanted.path) || start
        });
    }
    let whole = wanted.whole_resource();
    let any_with_part = format!("*/{}", wanted.subresource);
    let resource = |text: &str| {
        exactly(text, &whole) || !wanted.subresource.is_empty() && text == any_with_part
    };
    let named = array_at(rule, "/resourceNames").is_empty()
        || has("/resourceNames", &|name| name == wanted.name && !name.is_empty());
    has("/apiGroups", &|group| exactly(group, &wanted.group))
        && has("/resources", &resource)
        && named
}

/// The roles that each cluster has, and the groups that they are bound to.
const DEFAULTS: &str = include_str!("roles.txt");

/// Stores the roles and bindings that each cluster has.
pub(crate) fn create_default_roles(state: &mut State) {
    // The first line describes the form of the file.
    let mut lines = DEFAULTS.lines().skip(1).peekable();
    while let Some(line) = lines.next() {
        let Some((role, groups)) = line.split_once(" =") else { continue };
        let mut rules = Vec::new();
        while let Some(rule) = lines.next_if(|line| line.starts_with(' ')) {
            rules.extend(rule_of(rule));
        }
        let labels = json!({ "kubernetes.io/bootstrapping": "rbac-defaults" });
        let note = json!({ "rbac.authorization.kubernetes.io/autoupdate": "true" });
        let metadata = json!({ "labels": labels, "annotations": note });
        let value = json!({ "metadata": metadata, "rules": rules });
        state.ensure(Kind::ClusterRole, "", role, value);
        let subjects: Vec<Value> = groups
            .split_whitespace()
            .map(|group| json!({ "kind": "Group", "apiGroup": GROUP, "name": group }))
            .collect();
        if !subjects.is_empty() {
            let reference = json!({ "apiGroup": GROUP, "kind": "ClusterRole", "name": role });
            let value = json!({ "metadata": metadata, "subjects": subjects, "roleRef": reference });
            state.ensure(Kind::ClusterRoleBinding, "", role, value);
        }
    }
}

fn rule_of(line: &str) -> Option<Value> {
    let mut columns = line.split_whitespace();
    let mut list = || -> Option<Vec<&str>> { Some(columns.next()?.split(',').collect()) };
    let (groups, resources, verbs) = (list()?, list()?, list()?);
    if groups == ["-"] {
        return Some(json!({ "nonResourceURLs": resources, "verbs": verbs }));
    }
    let groups: Vec<&str> = groups.iter().map(|group| group.trim_matches('"')).collect();
    Some(json!({ "apiGroups": groups, "resources": resources, "verbs": verbs }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn asked(method: &str, path: &str) -> Attributes {
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let query = query.split('&').filter(|pair| !pair.is_empty()).map(|pair| {
            let (name, value) = pair.split_once('=').unwrap_or((pair, ""));
            (name.to_owned(), value.to_owned())
        });
        let mut request = Request::default();
        request.method = method.to_owned();
        request.path = path.to_owned();
        request.query = query.collect();
        Attributes::of(&request)
    }

    /// Verb, resource, group, namespace and name, as in the message of a 403.
    #[test]
    fn attributes_are_parsed_like_by_the_real_server() {
        for (method, path, want) in [
            ("GET", "/api/v1/namespaces/n/pods", "list pods  n "),
            ("GET", "/api/v1/namespaces/n/pods?watch=1", "watch pods  n "),
            ("GET", "/api/v1/namespaces/n/pods?watch=0", "list pods  n "),
            ("GET", "/api/v1/namespaces/n/pods?fieldSelector=metadata.name=x", "list pods  n x"),
            ("HEAD", "/api/v1/namespaces/n/pods/p", "get pods  n p"),
            ("GET", "/api/v1/namespaces/n/pods/p/log", "get pods/log  n p"),
            ("POST", "/api/v1/namespaces/n/pods", "create pods  n "),
            ("PUT", "/apis/batch/v1/namespaces/n/jobs/j/status", "update jobs/status batch n j"),
            ("PATCH", "/api/v1/nodes/x", "patch nodes   x"),
            ("DELETE", "/api/v1/pods", "deletecollection pods   "),
            ("DELETE", "/api/v1/namespaces/n", "delete namespaces  n n"),
            ("GET", "/api/v1/namespaces", "list namespaces   "),
            ("GET", "/api/v1/namespaces/n/status", "get namespaces/status  n n"),
        ] {
            let got = asked(method, path);
            let Attributes { verb, group, namespace, name, .. } = &got;
            let found = format!("{verb} {} {group} {namespace} {name}", got.whole_resource());
            assert_eq!(found, want, "{method} {path}");
        }
        for path in ["/", "/healthz", "/api", "/api/v1", "/apis/batch", "/apis/batch/v1"] {
            let got = asked("GET", path);
            assert_eq!((got.verb.as_str(), got.resource.as_str()), ("get", ""), "{path}");
        }
    }

    fn store() -> Store {
        let mut store = Store::new(99);
        let metadata = |name: &str| json!({"name": name, "namespace": "n", "uid": name});
        let role = json!({"metadata": metadata("r"), "rules": [
            {"apiGroups": [""], "resources": ["pods", "pods/log"], "verbs": ["get", "list"]},
            {"apiGroups": [""], "resources": ["configmaps"], "resourceNames": ["only"],
             "verbs": ["get", "list"]},
            {"apiGroups": ["batch"], "resources": ["*"], "verbs": ["*"]},
            {"apiGroups": [""], "resources": ["*/status"], "verbs": ["patch"]},
        ]});
        store.put(Kind::Role, role);
        let binding = |subjects: Value, kind: &str, name: &str| {
            json!({
                "metadata": metadata(&format!("b-{name}")), "subjects": subjects,
                "roleRef": {"kind": kind, "name": name},
            })
        };
        let account = json!([{"kind": "ServiceAccount", "name": "a"}]);
        store.put(Kind::RoleBinding, binding(account, "Role", "r"));
        let all = json!({"metadata": metadata("all"), "rules": [
            {"apiGroups": ["*"], "resources": ["*"], "verbs": ["*"]},
            {"nonResourceURLs": ["/x", "/y/*"], "verbs": ["get"]},
        ]});
        store.put(Kind::ClusterRole, all);
        let group = json!([{"kind": "Group", "name": "g"}]);
        store.put(Kind::ClusterRoleBinding, binding(group, "ClusterRole", "all"));
        let user = json!([{"kind": "User", "name": "u"}]);
        store.put(Kind::RoleBinding, binding(user, "ClusterRole", "all"));
        store
    }

    #[test]
    fn roles_allow_nothing_but_their_rules() {
        let store = store();
        let user = |name: &str, group: &str| User {
            name: name.to_owned(),
            groups: vec![group.to_owned()],
            ..User::default()
        };
        let account = user("system:serviceaccount:n:a", "system:authenticated");
        let other = user("system:serviceaccount:m:a", "system:authenticated");
        let (named, of_group) = (user("u", ""), user("x", "g"));
        let pods = "/api/v1/namespaces/n/pods";
        for (who, method, path, want) in [
            (&account, "GET", pods, true),
            (&account, "GET", "/api/v1/namespaces/n/pods/p/log", true),
            (&account, "GET", "/api/v1/namespaces/n/pods/p/exec", false),
            (&account, "POST", pods, false),
            (&account, "GET", "/api/v1/namespaces/n/pods?watch=true", false),
            (&account, "GET", "/api/v1/namespaces/m/pods", false),
            (&account, "GET", "/api/v1/pods", false),
            (&account, "GET", "/api/v1/namespaces/n/configmaps/only", true),
            (&account, "GET", "/api/v1/namespaces/n/configmaps/other", false),
            (&account, "GET", "/api/v1/namespaces/n/configmaps", false),
            (&account, "DELETE", "/apis/batch/v1/namespaces/n/jobs/j", true),
            (&account, "DELETE", "/apis/policy/v1/namespaces/n/jobs/j", false),
            (&account, "PATCH", "/api/v1/namespaces/n/pods/p/status", true),
            (&account, "PATCH", "/api/v1/namespaces/n/pods/p", false),
            (&other, "GET", pods, false),
            (&named, "DELETE", pods, true),
            (&named, "DELETE", "/api/v1/namespaces/m/pods", false),
            (&named, "GET", "/x", false),
            (&of_group, "DELETE", "/api/v1/namespaces/m/pods/p", true),
            (&of_group, "GET", "/api/v1/nodes", true),
            (&of_group, "GET", "/x", true),
            (&of_group, "GET", "/y/z", true),
            (&of_group, "GET", "/xx", false),
            (&of_group, "POST", "/x", false),
            (&user("", MASTERS), "POST", "/anything", true),
        ] {
            let got = allows(&store, who, &asked(method, path));
            assert_eq!(got, want, "{}: {method} {path}", who.name);
        }
    }

    #[test]
    fn each_cluster_has_the_default_roles() {
        let mut rules = 0;
        for line in DEFAULTS.lines().skip(1).filter(|line| line.starts_with(' ')) {
            assert!(rule_of(line).is_some(), "{line}");
            rules += 1;
        }
        assert_eq!((rules, DEFAULTS.matches(" =").count()), (35, 8));
    }
}
