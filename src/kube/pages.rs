//! Owns reading a LIST page by page, where its pages need not be of one version. Decides nothing.

use crate::core::refusal::{Class, Refusal};
use crate::kube::api::{
    LIST_BYTES_MAX, LIST_PAGE_TIMEOUT, LIST_RESTARTS_MAX, PAGE_ITEMS, PAGES_MAX, call, encoded, get,
};
use crate::kube::http::Http;
use crate::wire::pod::WireError;
use crate::wire::status::{Verb, unreadable};

/// Adds what a page holds to what those before it held; gives the token of the next one.
pub(super) type AddPage<T> = fn(&[u8], &mut T) -> Result<Option<String>, WireError>;

/// Reads all of `collection` that `selector` finds. Pages that expire under way are begun again.
///
/// # Errors
/// The server's refusal.
pub(super) fn list<T: Default>(
    http: &Http,
    collection: &str,
    selector: &str,
    add: AddPage<T>,
) -> Result<T, Refusal> {
    for _ in 0..LIST_RESTARTS_MAX {
        match list_once(http, collection, selector, add) {
            Err(refusal) if refusal.class == Class::Expired => {
                log::debug!("a page of the list expired, beginning again: {refusal}");
            }
            result => return result,
        }
    }
    list_once(http, collection, selector, add)
}

fn list_once<T: Default>(
    http: &Http,
    collection: &str,
    selector: &str,
    add: AddPage<T>,
) -> Result<T, Refusal> {
    let first = format!("{collection}?labelSelector={}&limit={PAGE_ITEMS}", encoded(selector));
    let mut path = first.clone();
    let mut all = T::default();
    for _ in 0..PAGES_MAX {
        let request = get(path, LIST_PAGE_TIMEOUT, LIST_BYTES_MAX);
        let (status, answer) = call(http, &request, Verb::List)?;
        let next =
            add(&answer, &mut all).map_err(|problem| unreadable(status, &problem.to_string()))?;
        let Some(token) = next else { return Ok(all) };
        path = format!("{first}&continue={}", encoded(&token));
    }
    Err(unreadable(200, &format!("the list has more than {PAGES_MAX} pages")))
}
