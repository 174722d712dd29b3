//! Owns the verbs: a request in, an answer out. Knows no socket; holds the lock only while it looks
//! at or changes the state.

use std::path::PathBuf;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, SystemTime};

use crossbeam_channel::Receiver;
use serde_json::{Value, json};

use crate::clock::Clock;
use crate::core::model::rng::Rng;
use crate::dev::admit::Disabled;
use crate::dev::deletion::{Collector, Deleted};
use crate::dev::discovery;
use crate::dev::edge;
use crate::dev::events::Events;
use crate::dev::evict;
use crate::dev::faults::{Fault, Faults, Injector};
use crate::dev::health;
use crate::dev::identity::{self, Tokens, User};
use crate::dev::kind::{Key, Kind, Part};
use crate::dev::logs;
use crate::dev::openapi;
use crate::dev::options::{self, ListOptions};
use crate::dev::rbac;
use crate::dev::read;
use crate::dev::refused::Refused;
use crate::dev::review;
use crate::dev::route::{self, Route, Target};
use crate::dev::state::{NAMESPACES, State};
use crate::dev::store::{Store, WATCH_HISTORY_EVENTS};
use crate::dev::table::Form;
use crate::dev::time;
use crate::dev::watch::Watch;
use crate::dev::write;
use crate::serve::Request;

/// The API server without its sockets.
#[derive(Debug)]
pub(crate) struct Api {
    state: Mutex<State>,
    pub(crate) clock: Clock,
    pub(crate) faults: Injector,
    /// Where the node writes the containers' output.
    pub(crate) logs: PathBuf,
    /// What clients call: `http://127.0.0.1:PORT`, `https:` where they have to say who they are.
    pub(crate) url: String,
    /// The file that clients reach this server with.
    pub(crate) kubeconfig: PathBuf,
    /// This program, as which containers with volumes start.
    pub(crate) runner: PathBuf,
    pub(crate) tokens: Tokens,
    pub(crate) followers: logs::Followers,
    /// The owner's bearer token; none where nobody is asked who they are.
    pub(crate) admin_token: Option<String>,
}

/// What a request is answered with.
#[derive(Debug)]
pub(crate) enum Answer {
    Log(logs::Log),
    Watch(Watch),
    Whole { code: u16, content_type: &'static str, body: Vec<u8>, retry_after: Option<u32> },
}

impl Answer {
    pub(crate) fn json(code: u16, value: &Value) -> Self {
        Self::body(code, value.to_string().into_bytes())
    }

    pub(crate) fn body(code: u16, body: Vec<u8>) -> Self {
        Self::Whole { code, content_type: "application/json", body, retry_after: None }
    }

    fn text(code: u16, body: Vec<u8>) -> Self {
        let content_type = "text/plain; charset=utf-8";
        Self::Whole { code, content_type, body, retry_after: None }
    }

    pub(crate) fn refused(refused: &Refused) -> Self {
        Self::Whole {
            code: refused.code,
            content_type: "application/json",
            body: refused.body().to_string().into_bytes(),
            retry_after: refused.retry_after_seconds,
        }
    }
}

impl Api {
    pub(crate) fn new(
        clock: Clock,
        faults: Faults,
        seed: u64,
        logs: PathBuf,
        authority: String,
    ) -> Self {
        // Faults follow from the seed alone. Uids must not: a second cluster of the same seed is
        // another cluster, and its pods are other pods.
        let since_epoch =
            clock.wall(clock.now()).duration_since(std::time::UNIX_EPOCH).unwrap_or_default();
        let salt = u64::try_from(since_epoch.as_nanos() & u128::from(u64::MAX)).unwrap_or_default();
        let mut mixed = Rng::new(salt ^ u64::from(std::process::id()).rotate_left(32));
        let history_max = faults.number(Fault::Compact).map(usize::try_from);
        let history_max =
            history_max.map_or(WATCH_HISTORY_EVENTS, |kept| kept.unwrap_or(usize::MAX));
        let faults = Injector::new(faults, seed);
        let mut state = State {
            store: Store::new(history_max),
            rng: Rng::new(mixed.next_u64()),
            now: String::new(),
            disabled: Disabled::default(),
            events: Events::default(),
            collector: Collector::default(),
            has_roles: false,
            authority,
        };
        state.now = time::text(wall(clock, &faults));
        for namespace in NAMESPACES {
            state.ensure_namespace(namespace);
        }
        Self {
            state: Mutex::new(state),
            clock,
            faults,
            logs,
            url: String::new(),
            kubeconfig: PathBuf::new(),
            runner: "/proc/self/exe".into(),
            tokens: Tokens::default(),
            followers: logs::Followers::default(),
            admin_token: None,
        }
    }

    /// The wall time as the server has it: a fault may have moved its clock.
    pub(crate) fn wall(&self) -> SystemTime {
        wall(self.clock, &self.faults)
    }

    /// The state, at the time of this call.
    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        // A panic elsewhere is a bug that the panic itself reports; the maps are whole.
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.now = time::text(self.wall());
        state
    }

    pub(crate) fn subscribe(&self, kind: Kind) -> Receiver<()> {
        self.lock().store.subscribe(kind)
    }

    /// Answers a request.
    pub(crate) fn answer(&self, request: &Request, address: &str) -> Answer {
        self.dispatch(request, address).unwrap_or_else(|refused| Answer::refused(&refused))
    }

    fn dispatch(&self, request: &Request, address: &str) -> Result<Answer, Refused> {
        let user = self.admit(request)?;
        match route::parse(&request.path)? {
            Route::Document => {
                Form::of(request, Part::Status)?;
                match request.method.as_str() {
                    "GET" => discovery::document(&request.path, address)
                        .map(|document| Answer::json(200, &document))
                        .ok_or_else(Refused::no_such_path),
                    _ => Err(Refused::method_not_allowed()),
                }
            }
            Route::Review(review, namespace) => {
                Form::of(request, Part::Status)?;
                match request.method.as_str() {
                    "POST" => review::answer(self, request, review, &namespace, &user),
                    _ => Err(Refused::method_not_allowed()),
                }
            }
            Route::OpenApi => Ok(openapi::answer(request)),
            Route::NoGroup => Ok(Answer::text(404, b"404 page not found\n".to_vec())),
            Route::Nowhere => Ok(Answer::json(404, &discovery::paths())),
            Route::Health => Ok(Answer::text(200, health::text(request))),
            Route::Resource(target) if target.part == Part::Log => self.resource(request, &target),
            Route::Resource(target) => {
                let form = Form::of(request, target.part)?;
                edge::validate_fields(request, &target)?;
                let answer = self
                    .resource(&*edge::inward(request, &target)?, &target)
                    .map_err(|refused| edge::refused(&target, refused))?;
                let answer = edge::outward(&target, answer);
                match form.is_plain() {
                    true => Ok(answer),
                    false => form.answer(target.kind, answer, &self.lock().now),
                }
            }
        }
    }

    /// Who asks, where that one may.
    pub(crate) fn admit(&self, request: &Request) -> Result<User, Refused> {
        let user = identity::authenticate(self, request)?;
        match self.admin_token {
            Some(_) => rbac::admit(&self.lock().store, request, user),
            None => Ok(user),
        }
    }

    fn resource(&self, request: &Request, target: &Target) -> Result<Answer, Refused> {
        let kind = target.kind;
        let allowed = |verb: &str| match kind.verbs().contains(&verb) {
            true => Ok(()),
            false => Err(Refused::method_not_allowed()),
        };
        match (request.method.as_str(), target.key(), target.part) {
            ("GET", None, _) => read::collection(self, request, target),
            ("GET", Some(key), Part::Whole | Part::Status) => {
                read::object(self, request, target, &key)
            }
            ("GET", Some(key), Part::Log) => {
                logs::answer(self, request, &key).map(|log| match log {
                    Some(log) => Answer::Log(log),
                    None => Answer::Whole {
                        code: 204,
                        content_type: "text/plain",
                        body: Vec::new(),
                        retry_after: None,
                    },
                })
            }
            // A create over all namespaces would not know where to.
            ("POST", None, _) if kind.is_namespaced() != target.namespace.is_empty() => {
                allowed("create")?;
                write::create(self, request, kind, &target.namespace)
            }
            ("POST", Some(key), Part::Binding) => write::bind(self, request, &key),
            ("POST", Some(key), Part::Token) => identity::request_token(self, request, &key),
            ("POST", Some(key), Part::Eviction) => evict::evict(self, request, &key),
            ("PUT", Some(key), part @ (Part::Whole | Part::Status)) => {
                allowed("update")?;
                write::put(self, request, &key, part)
            }
            ("PATCH", Some(key), part @ (Part::Whole | Part::Status)) => {
                allowed("patch")?;
                write::patch(self, request, &key, part)
            }
            ("DELETE", Some(key), Part::Whole) => {
                allowed("delete")?;
                self.delete(request, &key)
            }
            ("DELETE", None, _) if !target.namespace.is_empty() => {
                allowed("deletecollection")?;
                self.delete_collection(request, target)
            }
            _ => Err(Refused::method_not_allowed()),
        }
    }

    fn delete(&self, request: &Request, key: &Key) -> Result<Answer, Refused> {
        let options = options::delete(request)?;
        match self.lock().delete(key, &options)? {
            Deleted::Marked(value) => Ok(Answer::json(200, &value)),
            Deleted::Gone(object) if key.kind.is_answered_whole() => {
                let mut body = Vec::new();
                object.write_json(&mut body);
                Ok(Answer::body(200, body))
            }
            Deleted::Gone(object) => {
                let mut details = json!({
                    "name": key.name, "kind": key.kind.plural(), "uid": *object.uid,
                });
                if !key.kind.group().is_empty() {
                    details["group"] = key.kind.group().into();
                }
                let mut body = success(200);
                body["details"] = details;
                if let Some(members) = body.as_object_mut() {
                    members.remove("code");
                }
                Ok(Answer::json(200, &body))
            }
        }
    }

    fn delete_collection(&self, request: &Request, target: &Target) -> Result<Answer, Refused> {
        let list = ListOptions::parse(target.kind, request)?;
        let mut options = options::delete(request)?;
        options.uid = None;
        options.version = None;
        let mut state = self.lock();
        let version = state.store.version();
        let chosen: Vec<_> = state
            .store
            .objects(target.kind, &target.namespace)
            .filter(|object| list.matches(object))
            .cloned()
            .collect();
        for object in &chosen {
            // One that went with another of them is gone already, which is what was asked.
            match state.delete(&object.key, &options) {
                Ok(_) => {}
                Err(refused) if refused.code == 404 => {}
                Err(refused) => return Err(refused),
            }
        }
        drop(state);
        let metadata = read::list_metadata(version, None, None);
        Ok(Answer::body(200, read::list_body(target.kind, &metadata, &chosen)))
    }

    /// Changes the object of that key and uid, where it is still there.
    pub(crate) fn edit(&self, key: &Key, uid: &str, change: impl FnOnce(&mut Value)) -> bool {
        let mut state = self.lock();
        let Some(object) = state.store.get(key).filter(|object| &*object.uid == uid) else {
            return false;
        };
        let old = object.value();
        let mut value = old.clone();
        change(&mut value);
        if value != old {
            state.replace(key.kind, value);
        }
        true
    }
}

fn wall(clock: Clock, faults: &Injector) -> SystemTime {
    let skew = faults.seconds(Fault::ClockSkew);
    let (now, by) = (clock.wall(clock.now()), Duration::from_secs(skew.unsigned_abs()));
    let moved = if skew < 0 { now.checked_sub(by) } else { now.checked_add(by) };
    moved.unwrap_or(now)
}

/// A `Status` that says that all went well.
pub(crate) fn success(code: u16) -> Value {
    json!({
        "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Success", "code": code,
    })
}
