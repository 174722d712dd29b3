//! Authenticates, authorizes and routes a request, and calls the handler of its verb.

use serde_json::json;

use crate::apiserver::answer::{Answer, success};
use crate::apiserver::api::Api;
use crate::apiserver::authn::{self, User};
use crate::apiserver::authz;
use crate::apiserver::codec;
use crate::apiserver::discovery;
use crate::apiserver::evict;
use crate::apiserver::exec_subresource;
use crate::apiserver::logs;
use crate::apiserver::options::{self, ListOptions};
use crate::apiserver::read;
use crate::apiserver::review;
use crate::apiserver::route::{self, Route, Target};
use crate::apiserver::table::Form;
use crate::apiserver::write;
use crate::schema::kind::{Key, Subresource};
use crate::schema::status::StatusError;
use crate::storage::deletion::Deleted;
use posse_serve::Request;

const TEXT: &str = "text/plain; charset=utf-8";

pub(crate) fn answer(api: &Api, request: &Request) -> Answer {
    dispatch(api, request).unwrap_or_else(|error| Answer::error(&error))
}

fn dispatch(api: &Api, request: &Request) -> Result<Answer, StatusError> {
    let user = authorize(api, request)?;
    match route::parse(&request.path)? {
        Route::Document => match request.method.as_str() {
            "GET" => discovery::document(&request.path)
                .map(|document| Answer::json(200, &document))
                .ok_or_else(StatusError::no_such_path),
            _ => Err(StatusError::method_not_allowed()),
        },
        Route::Review(review) => match request.method.as_str() {
            "POST" => review::answer(api, request, review, &user),
            _ => Err(StatusError::method_not_allowed()),
        },
        // An empty document in protobuf. kubectl asks for it before it creates something; with types in it
        // kubectl before 1.27 would check the fields itself.
        Route::OpenApi => Ok(Answer::of_type(200, "application/octet-stream", Vec::new())),
        Route::Nowhere => Ok(Answer::of_type(404, TEXT, b"404 page not found\n".to_vec())),
        Route::Health => Ok(Answer::of_type(200, TEXT, b"ok".to_vec())),
        Route::Resource(target)
            if matches!(target.subresource, Subresource::Exec | Subresource::Log) =>
        {
            resource(api, request, &target)
        }
        Route::Resource(target) => {
            let form = Form::of(request);
            codec::validate_fields(request, &target)?;
            let answer =
                resource(api, &*codec::to_stored(request, &target)?, &target)?.in_version(&target);
            Ok(match form {
                Form::Plain => answer,
                Form::Metadata | Form::Table(_) => {
                    answer.in_form(form, target.kind, &api.lock().now)
                }
            })
        }
    }
}

/// Authenticates and authorizes a request; returns its user.
pub(crate) fn authorize(api: &Api, request: &Request) -> Result<User, StatusError> {
    let user = authn::authenticate(api, request)?;
    let state = api.lock();
    match state.has_roles {
        true => authz::authorize(&state.store, request, user),
        false => Ok(user),
    }
}

fn resource(api: &Api, request: &Request, target: &Target) -> Result<Answer, StatusError> {
    let kind = target.kind;
    let allowed = |verb: &str| match kind.verbs().contains(&verb) {
        true => Ok(()),
        false => Err(StatusError::method_not_allowed()),
    };
    match (request.method.as_str(), target.key(), target.subresource) {
        ("POST", Some(key), Subresource::Binding) => write::bind(api, request, &key),
        ("GET", None, _) => read::collection(api, request, target),
        ("GET", Some(key), part) if part.has_object() => read::object(api, request, &key),
        ("GET", Some(key), Subresource::Log) => {
            logs::answer(api, request, &key).map(|log| match log {
                Some(log) => Answer::Log(log),
                None => Answer::of_type(204, "text/plain", Vec::new()),
            })
        }
        ("GET" | "POST", Some(key), Subresource::Exec) => {
            exec_subresource::answer(api, request, &key).map(Answer::Exec)
        }
        // A create needs a namespace if the kind is namespaced.
        ("POST", None, _) if kind.is_namespaced() != target.namespace.is_empty() => {
            allowed("create")?;
            write::create(api, request, kind, &target.namespace)
        }
        ("POST", Some(key), Subresource::Token) => authn::request_token(api, request, &key),
        ("POST", Some(key), Subresource::Eviction) => evict::evict(api, request, &key),
        ("PUT", Some(key), part) if part.has_object() => {
            allowed("update")?;
            write::put(api, request, &key, part)
        }
        ("PATCH", Some(key), part) if part.has_object() => {
            allowed("patch")?;
            write::patch(api, request, &key, part)
        }
        ("DELETE", Some(key), Subresource::None) => {
            allowed("delete")?;
            delete(api, request, &key)
        }
        ("DELETE", None, _) if !target.namespace.is_empty() => {
            allowed("deletecollection")?;
            delete_collection(api, request, target)
        }
        _ => Err(StatusError::method_not_allowed()),
    }
}

fn delete(api: &Api, request: &Request, key: &Key) -> Result<Answer, StatusError> {
    let options = options::delete(request)?;
    match api.lock().delete(key, &options)? {
        Deleted::Terminating(value) => Ok(Answer::json(200, &value)),
        Deleted::Removed(object) if key.kind.delete_returns_object() => {
            Ok(Answer::object(200, &object))
        }
        Deleted::Removed(object) => {
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

fn delete_collection(api: &Api, request: &Request, target: &Target) -> Result<Answer, StatusError> {
    let list = ListOptions::parse(target, request)?;
    let options = options::delete(request)?;
    let mut state = api.lock();
    let version = state.store.version();
    let chosen: Vec<_> = state
        .store
        .objects(target.kind, &target.namespace)
        .filter(|object| list.matches(object))
        .cloned()
        .collect();
    for object in &chosen {
        // The deletion of another object may have removed this one already.
        match state.delete(&object.key, &options) {
            Ok(_) => {}
            Err(error) if error.code == 404 => {}
            Err(error) => return Err(error),
        }
    }
    drop(state);
    let metadata = read::list_metadata(version, None, None);
    Ok(Answer::body(200, read::list_body(target.kind, &metadata, &chosen)))
}
