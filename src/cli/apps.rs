//! `posse apps`: lists applications.

use std::io::Write;

use jiff::Timestamp;
use serde_json::Value;

use crate::cli::args::submit::{AppsArgs, AppsOutput};
use crate::cli::exit::{Code, Failure};
use crate::cli::namespace::Namespace;
use crate::cli::terminal::{print, print_json};
use crate::cli::world::World;
use crate::control::table::table;
use crate::kube::api::objects::Objects;
use crate::submit::apps::{App, age};

/// `posse apps`.
pub fn apps(args: &AppsArgs, world: &World<'_>, out: &mut dyn Write) -> Result<Code, Failure> {
    let namespace = Namespace::new(&args.namespace, world)?;
    let objects = match args.all_namespaces {
        true => Objects::new(namespace.connection.http.clone(), None),
        false => namespace.objects(),
    };
    let apps = namespace.apps(&objects, &args.names)?;
    let now_s = Timestamp::now().as_second();
    let text = match (args.output, apps.is_empty()) {
        (Some(AppsOutput::Json), _) => {
            let all: Value = apps.iter().map(|app| app.to_json(now_s)).collect();
            return print_json(out, &format!("{all:#}\n")).map(|()| Code::Clean);
        }
        (Some(AppsOutput::Wide) | None, true) => match args.all_namespaces {
            true => "there are no applications\n".to_owned(),
            false => format!("there are no applications in namespace {}\n", namespace.name),
        },
        (Some(AppsOutput::Wide), false) => wide(&apps, now_s),
        (None, false) => narrow(&apps, now_s, args.all_namespaces),
    };
    print(out, &text).map(|()| Code::Clean)
}

fn narrow(apps: &[App], now_s: i64, all_namespaces: bool) -> String {
    let heads = ["NAME", "STATE", "EXECUTORS", "AGE", "DRIVER"].map(str::to_owned);
    let rows = apps.iter().map(|app| {
        let [namespace, rest @ ..] = cells(app, now_s);
        let [name, state, executors, age, driver, ..] = rest;
        let name = if all_namespaces { format!("{namespace}/{name}") } else { name };
        [name, state, executors, age, driver]
    });
    table(&heads, rows.collect())
}

fn wide(apps: &[App], now_s: i64) -> String {
    let heads = [
        "NAMESPACE",
        "NAME",
        "STATE",
        "EXECUTORS",
        "AGE",
        "DRIVER",
        "NODE",
        "INSTANCE",
        "FAILED",
        "EXIT",
    ];
    table(&heads.map(str::to_owned), apps.iter().map(|app| cells(app, now_s)).collect())
}

fn cells(app: &App, now_s: i64) -> [String; 10] {
    let or_dash = |text: Option<String>| text.unwrap_or_else(|| "-".to_owned());
    [
        app.namespace.clone(),
        app.name.clone(),
        or_dash(app.state.map(|state| state.as_str().to_owned())),
        app.executors(),
        or_dash(app.created_s.map(|created_s| age(now_s - created_s))),
        or_dash(app.driver.clone()),
        or_dash(app.node.clone()),
        or_dash(app.instance.clone()),
        app.n_failed.to_string(),
        or_dash(app.exit_code.map(|code| code.to_string())),
    ]
}
