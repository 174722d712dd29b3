//! `posse apps --page`: shows the applications in browsers, as far as whoever started it may read them.

use std::io::Write;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::{Wanted, add_local, is_without_cluster};
use crate::args::submit::AppsArgs;
use crate::exit::{Code, Failure};
use crate::namespace::{Namespace, start_signals};
use crate::terminal::print;
use crate::world::World;
use posse_control::page::apps::{Apps, AppsServer, Shown};
use posse_core::model::refusal::Refusal;
use posse_kube::api::objects::Objects;
use posse_run::random::random_bits;
use posse_serve::token::Token;
use posse_submit::apps::find;
use posse_wire::config::listen_addr::ListenAddr;

/// Serves the page until a signal.
///
/// # Errors
/// No cluster is configured, the token file is not private, or the address cannot be used.
pub(super) fn serve(
    args: &AppsArgs,
    at: ListenAddr,
    world: &World<'_>,
    out: &mut dyn Write,
) -> Result<Code, Failure> {
    let signals = start_signals()?;
    let token = match &args.page_token_file {
        Some(file) => Token::read_private(&world.dir.join(file))
            .map_err(|error| Failure::usage(format!("--page-token-file: {error}")))?,
        None => Token::random().map_err(|error| Failure::new(Code::Failed, error.to_string()))?,
    };
    let wanted = Wanted::new(args, world);
    let namespace = match Namespace::new(&args.namespace, world) {
        Ok(namespace) => Some(namespace),
        // As the list: without a cluster there are the runs on this host.
        Err(failure)
            if is_without_cluster(args, &failure, world) && !wanted.local_runs().is_empty() =>
        {
            None
        }
        Err(failure) => return Err(failure),
    };
    let server = namespace.as_ref().map(|one| one.connection.http.server().to_owned());
    let named = namespace.as_ref().filter(|_| !wanted.all_namespaces);
    let shown = Shown {
        server: server.clone().unwrap_or_else(|| "this host".to_owned()),
        namespace: named.map(|namespace| namespace.name.clone()),
    };
    let objects = namespace.as_ref().map(|namespace| wanted.objects(namespace));
    let source = Source { objects, server: server.unwrap_or_default(), wanted };
    // A token of a file stays there.
    let fragment = match &args.page_token_file {
        Some(_) => String::new(),
        None => format!("#token={}", token.reveal()),
    };
    let page = AppsServer::start(at, token, (Arc::new(source), shown), random_bits())
        .map_err(|error| Failure::usage(format!("--page {at}: {error}")))?;
    let printed = print(out, &format!("http://{}/{fragment}\n", page.address()));
    if printed.is_ok() {
        signals.until_stopped();
    }
    drop(page);
    printed.map(|()| Code::Clean)
}

/// The applications of the cluster, and the runs on this host.
struct Source {
    objects: Option<Objects>,
    server: String,
    wanted: Wanted,
}

impl Apps for Source {
    fn read(&self) -> Result<Vec<Value>, Refusal> {
        let mut apps = match &self.objects {
            Some(objects) => find(objects, &self.wanted.names)?,
            None => Vec::new(),
        };
        add_local(&mut apps, self.wanted.local_runs(), &self.server);
        let now_s = Timestamp::now().as_second();
        Ok(apps.iter().map(|app| app.to_json(now_s)).collect())
    }
}
