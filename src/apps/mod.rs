//! `posse apps`: lists applications, or shows them in a browser.

mod page;

use std::collections::BTreeMap;
use std::io::Write;
use std::path::PathBuf;

use jiff::Timestamp;
use serde_json::Value;

use crate::args::submit::AppsArgs;
use crate::exit::{Code, Failure};
use crate::listing::{Listing, print_listing};
use crate::namespace::Namespace;
use crate::settings::socket_folders;
use crate::table::{or_dash, table};
use crate::terminal::print;
use crate::world::World;
use posse_base::text::age;
use posse_control::address::live_sockets;
use posse_control::client::{Client, RunSelector};
use posse_kube::api::objects::Objects;
use posse_submit::apps::{App, is_pattern, matches};
use posse_submit::state::DriverState;
use posse_wire::config::control_addr::ControlAddr;
use posse_wire::control::status_json::{GroupJson, StatusJson};

/// `posse apps`.
///
/// # Errors
/// The cluster cannot be asked, and no application runs on this host. If one does, it is listed, and the exit
/// code is 1.
pub fn apps(args: &AppsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    if let Some(at) = args.page {
        return page::serve(args, at, world, out);
    }
    let wanted = Wanted::new(args, world);
    let local = wanted.local_runs();
    let mut code = Code::Clean;
    let Listed { namespace, server, mut apps } = match in_cluster(args, &wanted, world) {
        Ok(listed) => listed,
        Err(failure) if local.is_empty() => return Err(failure),
        // Without a kubeconfig there is no cluster to list.
        Err(failure) if is_without_cluster(args, &failure, world) => Listed::default(),
        Err(failure) => {
            log::warn!("only the runs on this host are listed: {failure}");
            code = Code::Failed;
            Listed::default()
        }
    };
    add_local(&mut apps, local, &server);
    let now_s = Timestamp::now().as_second();
    // A pattern may match nothing; who names an application means one.
    let is_missing =
        |name: &&String| !is_pattern(name) && !apps.iter().any(|app| app.name == **name);
    if let Some(name) = args.names.iter().find(is_missing) {
        let place = match args.all_namespaces {
            true => String::new(),
            false => format!(" in namespace {namespace}"),
        };
        let message = format!("there is no application {name}{place}; `posse apps` lists all");
        return Err(Failure::new(Code::Failed, message));
    }
    if apps.is_empty() && !args.output.is_for_programs() {
        let text = match args.all_namespaces {
            true => "there are no applications\n".to_owned(),
            false => format!("there are no applications in namespace {namespace}\n"),
        };
        return print(out, &text).map(|()| Code::Clean);
    }
    let listing = Apps { apps, now_s, all_namespaces: args.all_namespaces };
    print_listing(&listing, args.output, out).map(|_| code)
}

/// Nothing names a cluster.
fn is_without_cluster(args: &AppsArgs, failure: &Failure, world: &World<'_>) -> bool {
    failure.code == Code::Usage && !args.namespace.is_given() && (world.env)("KUBECONFIG").is_none()
}

/// What the cluster answers; nothing if it was not asked.
#[derive(Default)]
struct Listed {
    namespace: String,
    /// The URL of the API server.
    server: String,
    apps: Vec<App>,
}

fn in_cluster(args: &AppsArgs, wanted: &Wanted, world: &World<'_>) -> Result<Listed, Failure> {
    let namespace = Namespace::new(&args.namespace, world)?;
    let apps = namespace.apps(&wanted.objects(&namespace), &wanted.names)?;
    let server = namespace.connection.http.server().to_owned();
    Ok(Listed { namespace: namespace.name, server, apps })
}

/// Which applications are listed.
#[derive(Clone, Debug)]
struct Wanted {
    names: Vec<String>,
    /// What `-n` names.
    namespace: Option<String>,
    all_namespaces: bool,
    /// Where the sockets of runs on this host are.
    folders: Vec<PathBuf>,
}

impl Wanted {
    fn new(args: &AppsArgs, world: &World<'_>) -> Self {
        Self {
            names: args.names.clone(),
            namespace: args.namespace.namespace.clone(),
            all_namespaces: args.all_namespaces,
            folders: socket_folders(world),
        }
    }

    fn objects(&self, namespace: &Namespace) -> Objects {
        match self.all_namespaces {
            true => Objects::new(namespace.connection.http.clone(), None),
            false => namespace.objects(),
        }
    }

    /// The runs on this host whose names match, in the namespace if `-n` names one. A run that does not answer is
    /// left out. Looking at it is no sign of life of its driver.
    fn local_runs(&self) -> Vec<App> {
        let names = &self.names;
        let is_named =
            |namespace: &String| self.namespace.as_ref().is_none_or(|wanted| wanted == namespace);
        let sockets = live_sockets(None, &self.folders);
        let runs = sockets.into_iter().filter_map(|socket| {
            let selector = RunSelector {
                control: Some(ControlAddr::Unix(socket).to_string()),
                ..RunSelector::default()
            };
            let status = Client::find(&selector).and_then(|client| client.observe());
            status.inspect_err(|error| log::debug!("a run is not listed: {error}")).ok()
        });
        runs.map(|status| local_app(&status))
            .filter(|app| is_named(&app.namespace))
            .filter(|app| names.is_empty() || names.iter().any(|name| matches(name, &app.name)))
            .collect()
    }
}

fn local_app(status: &StatusJson) -> App {
    let sum = |of: fn(&GroupJson) -> u32| status.groups.iter().map(|g| u64::from(of(g))).sum();
    App {
        namespace: status.identity.namespace.clone(),
        server: Some(status.identity.server.clone()).filter(|server| !server.is_empty()),
        name: status.identity.app.clone(),
        state: Some(DriverState::Local),
        n_running: sum(|group| group.running),
        n_pending: sum(|group| group.requested + group.pending),
        n_failed: sum(|group| group.failed),
        groups: BTreeMap::new(),
        waiting: status.groups.iter().find_map(|group| group.waiting.clone()),
        n_wanted: Some(sum(GroupJson::wanted)),
        driver: None,
        node: None,
        rest: Vec::new(),
        standby: Vec::new(),
        takeover: None,
        instance: Some(status.identity.instance.clone()),
        exit_code: None,
        n_failed_drivers: 0,
        created_s: None,
    }
}

/// A run on this host stands in for its executors in the cluster. `listed`: the server of `apps`.
fn add_local(apps: &mut Vec<App>, local: Vec<App>, listed: &str) {
    for mut run in local {
        // Only what is elsewhere is marked.
        run.server = run.server.filter(|server| server != listed && !listed.is_empty());
        let of_same_run = |app: &&mut App| {
            app.state.is_none()
                && run.server.is_none()
                && (&app.namespace, &app.name, &app.instance)
                    == (&run.namespace, &run.name, &run.instance)
        };
        match apps.iter_mut().find(of_same_run) {
            Some(found) => {
                run.created_s = found.created_s;
                run.groups = std::mem::take(&mut found.groups);
                *found = run;
            }
            None => apps.push(run),
        }
    }
    apps.sort_by(|a, b| (&a.namespace, &a.name).cmp(&(&b.namespace, &b.name)));
}

/// The found applications.
struct Apps {
    apps: Vec<App>,
    now_s: i64,
    all_namespaces: bool,
}

impl Apps {
    /// The name, with its namespace if several are listed.
    fn name(&self, app: &App) -> String {
        match self.all_namespaces {
            true => format!("{}/{}", app.namespace, app.name),
            false => app.name.clone(),
        }
    }
}

impl Listing for Apps {
    fn table(&self, is_wide: bool) -> String {
        let all = self.apps.iter().map(|app| cells(app, self.now_s));
        if is_wide {
            return table(WIDE_HEADS, all);
        }
        let heads = ["NAMESPACE", "NAME", "STATE", "EXECUTORS", "AGE", "DRIVER"];
        let rows = all.map(|[namespace, name, state, executors, _, age, driver, ..]| {
            [namespace, name, state, executors, age, driver]
        });
        if self.all_namespaces {
            return table(heads, rows);
        }
        let [_, heads @ ..] = heads;
        table(heads, rows.map(|[_, rest @ ..]| rest))
    }

    fn json(&self) -> Value {
        self.apps.iter().map(|app| app.to_json(self.now_s)).collect()
    }

    fn names(&self) -> Vec<String> {
        self.apps.iter().map(|app| self.name(app)).collect()
    }
}

const WIDE_HEADS: [&str; 16] = [
    "NAMESPACE",
    "NAME",
    "STATE",
    "EXECUTORS",
    "FAILED",
    "AGE",
    "DRIVER",
    "NODE",
    "STANDBY",
    "TOOK OVER",
    "INSTANCE",
    "FAILED DRIVERS",
    "EXIT",
    "WAITING",
    "CPU H",
    "GIB H",
];

fn cells(app: &App, now_s: i64) -> [String; 16] {
    [
        app.namespace.clone(),
        app.name.clone(),
        or_dash(app.state.map(|state| match &app.server {
            Some(server) => format!("{} at {server}", state.as_str()),
            None if app.rest.is_empty() => state.as_str().to_owned(),
            None => format!("{}, {} runs on", state.as_str(), app.rest.join(", ")),
        })),
        app.executors(),
        app.n_failed.to_string(),
        or_dash(app.created_s.map(|created_s| age(now_s - created_s))),
        or_dash(app.driver.as_ref()),
        or_dash(app.node.as_ref()),
        or_dash(Some(app.standby.join(",")).filter(|names| !names.is_empty())),
        or_dash(app.takeover.as_ref()),
        or_dash(app.instance.as_ref()),
        app.n_failed_drivers.to_string(),
        or_dash(app.exit_code),
        or_dash(app.waiting.as_ref()),
        format!("{:.2}", app.cost().cpu_hours()),
        format!("{:.2}", app.cost().memory_hours()),
    ]
}

#[cfg(test)]
mod tests {
    use super::*;
    use posse_testing::sample_status_json;
    use posse_wire::control::status_json::RunNames;

    fn run(server: Option<&str>) -> App {
        let mut app = local_app(&sample_status_json(&RunNames::default()));
        app.server = server.map(str::to_owned);
        app
    }

    /// Only a run that is known to be elsewhere is marked.
    #[test]
    fn a_run_of_another_cluster_says_so() {
        let shown = |server, listed| {
            let mut apps = Vec::new();
            add_local(&mut apps, vec![run(server)], listed);
            let [_, _, state, ..] = cells(&apps[0], 0);
            state
        };
        assert_eq!(shown(Some("https://b"), "https://a"), "Local at https://b");
        assert_eq!(shown(Some("https://a"), "https://a"), "Local");
        assert_eq!(shown(None, "https://a"), "Local");
        assert_eq!(shown(Some("https://b"), ""), "Local");
    }

    /// What looks like its executors in the listed cluster is not of this run.
    #[test]
    fn a_run_of_another_cluster_replaces_nothing() {
        let mut listed = run(None);
        listed.state = None;
        let mut apps = vec![listed];
        add_local(&mut apps, vec![run(Some("https://b"))], "https://a");
        assert_eq!(apps.len(), 2);
        let mut apps = vec![apps.remove(0)];
        add_local(&mut apps, vec![run(Some("https://a"))], "https://a");
        assert_eq!(apps.len(), 1);
    }
}
