//! `posse apps --page`: shows the applications in browsers, as far as whoever started it may read them.

use std::io::Write;
use std::sync::Arc;

use jiff::Timestamp;
use serde_json::Value;

use super::{Wanted, add_local};
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
    let namespace = Namespace::new(&args.namespace, world)?;
    let wanted = Wanted::new(args, world);
    let shown = Shown {
        server: namespace.connection.http.server().to_owned(),
        namespace: (!wanted.all_namespaces).then(|| namespace.name.clone()),
    };
    let source =
        Source { objects: wanted.objects(&namespace), server: shown.server.clone(), wanted };
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
    page.stop();
    printed.map(|()| Code::Clean)
}

/// The applications of the cluster, and the runs on this host.
struct Source {
    objects: Objects,
    server: String,
    wanted: Wanted,
}

impl Apps for Source {
    fn read(&self) -> Result<Vec<Value>, Refusal> {
        let mut apps = find(&self.objects, &self.wanted.names)?;
        add_local(&mut apps, self.wanted.local_runs(), &self.server);
        let now_s = Timestamp::now().as_second();
        Ok(apps.iter().map(|app| app.to_json(now_s)).collect())
    }
}
