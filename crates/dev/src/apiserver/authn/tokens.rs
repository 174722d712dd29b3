//! The tokens of service accounts: issued, renewed and looked up.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::sync::Mutex;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde_json::{Value, json};

use crate::schema::kind::{Key, Kind};
use crate::storage::State;
use crate::storage::object::text_at;
use posse_base::sync::lock;

/// The issuer of tokens, and their default audience.
pub(crate) const ISSUER: &str = "https://kubernetes.default.svc.cluster.local";

/// The number of tokens to remember; of more tokens the one that expires first is forgotten.
const TOKENS_MAX: usize = 16_384;
const SIGNATURE_BYTES: usize = 32;

/// The claims of a token.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Claims {
    pub(crate) namespace: String,
    pub(crate) account: String,
    pub(crate) account_uid: String,
    /// The token becomes invalid with this pod: its name and uid.
    pub(crate) bound: Option<(String, String)>,
    pub(crate) audiences: Vec<String>,
    pub(crate) expires: SystemTime,
}

/// The issued tokens. They have the form of a real server's JWTs, but a token is valid because it
/// is in this table: its signature is random.
#[derive(Debug, Default)]
pub(crate) struct Tokens(Mutex<TokenTable>);

#[derive(Debug, Default)]
struct TokenTable {
    claims: BTreeMap<String, Claims>,
    /// The tokens in pods' volumes by pod uid, audience and lifetime, with the time of their
    /// renewal.
    of_pods: BTreeMap<(String, String, u64), (String, SystemTime)>,
}

/// The wanted properties of a token.
#[derive(Clone, Debug)]
pub(crate) struct TokenSpec {
    pub(crate) audiences: Vec<String>,
    pub(crate) bound: Option<(String, String)>,
    pub(crate) seconds: u64,
}

impl Tokens {
    /// Issues a token for a service account.
    pub(crate) fn issue(
        &self,
        account: &Key,
        account_uid: &str,
        wanted: TokenSpec,
        now: SystemTime,
    ) -> std::io::Result<(String, Claims)> {
        let TokenSpec { mut audiences, bound, seconds } = wanted;
        if audiences.is_empty() {
            audiences.push(ISSUER.to_owned());
        }
        let claims = Claims {
            namespace: account.namespace.clone(),
            account: account.name.clone(),
            account_uid: account_uid.to_owned(),
            bound,
            audiences,
            expires: now + Duration::from_secs(seconds),
        };
        let part = |value: &Value| URL_SAFE_NO_PAD.encode(value.to_string());
        let token = format!(
            "{}.{}.{}",
            part(&json!({ "alg": "HS256", "typ": "JWT" })),
            part(&claims.payload(now)),
            new_secret()?
        );
        let mut known = lock(&self.0);
        if known.claims.len() >= TOKENS_MAX {
            known.claims.retain(|_, claims| claims.expires > now);
        }
        if known.claims.len() >= TOKENS_MAX {
            let first = known.claims.iter().min_by_key(|(_, claims)| claims.expires);
            let first = first.map(|(token, _)| token.clone());
            first.map(|first| known.claims.remove(&first));
        }
        known.claims.insert(token.clone(), claims.clone());
        Ok((token, claims))
    }

    /// The token in a pod's volume. It is renewed when a fifth of its lifetime is left.
    pub(crate) fn of_pod(
        &self,
        state: &State,
        pod: &Value,
        audience: &str,
        seconds: u64,
        now: SystemTime,
    ) -> Result<String, String> {
        let uid = text_at(pod, "/metadata/uid");
        let place = (uid.to_owned(), audience.to_owned(), seconds);
        if let Some((token, until)) = lock(&self.0).of_pods.get(&place)
            && now < *until
        {
            return Ok(token.clone());
        }
        let account = account_key(pod);
        let Some(object) = state.store.get(&account) else {
            let name = account.name;
            return Err(format!("failed to fetch token: serviceaccounts \"{name}\" not found"));
        };
        let wanted = TokenSpec {
            audiences: Some(audience.to_owned()).filter(|a| !a.is_empty()).into_iter().collect(),
            bound: Some((text_at(pod, "/metadata/name").to_owned(), uid.to_owned())),
            seconds,
        };
        let issued = self.issue(&account, &object.uid, wanted, now);
        let (token, _) = issued.map_err(|error| format!("failed to fetch token: {error}"))?;
        let mut known = lock(&self.0);
        known.of_pods.retain(|(uid, _, _), _| state.store.has_uid(uid));
        let until = now + Duration::from_secs(seconds - seconds / 5);
        known.of_pods.insert(place, (token.clone(), until));
        Ok(token)
    }

    /// The token for clients in a pod; empty if the pod or its service account sets
    /// `automountServiceAccountToken: false`.
    pub(crate) fn of_client(
        &self,
        state: &State,
        pod: &Value,
        now: SystemTime,
    ) -> Result<String, String> {
        const SECONDS: u64 = 365 * 24 * 3600;
        let wants = |object: &Value, place: &str| object.pointer(place).and_then(Value::as_bool);
        let account = state.store.get(&account_key(pod)).map(|object| object.value());
        let wanted = wants(pod, "/spec/automountServiceAccountToken")
            .or_else(|| wants(account.as_ref()?, "/automountServiceAccountToken"));
        match wanted {
            Some(false) => Ok(String::new()),
            Some(true) | None => self.of_pod(state, pod, "", SECONDS, now),
        }
    }

    /// The claims of a token; `None` if it has expired, or its service account or bound object is
    /// gone.
    pub(crate) fn claims(&self, state: &State, token: &str, now: SystemTime) -> Option<Claims> {
        let claims = lock(&self.0).claims.get(token).cloned()?;
        let bound = claims.bound.as_ref().is_none_or(|(_, uid)| state.store.has_uid(uid));
        let holds = claims.expires > now && state.store.has_uid(&claims.account_uid) && bound;
        holds.then_some(claims)
    }
}

/// The key of a pod's service account.
fn account_key(pod: &Value) -> Key {
    let name = match text_at(pod, "/spec/serviceAccountName") {
        "" => "default",
        name => name,
    };
    Key::new(Kind::ServiceAccount, text_at(pod, "/metadata/namespace"), name)
}

impl Claims {
    /// `system:serviceaccount:NAMESPACE:NAME`
    pub(crate) fn user(&self) -> String {
        format!("system:serviceaccount:{}:{}", self.namespace, self.account)
    }

    fn payload(&self, now: SystemTime) -> Value {
        let seconds = |at: SystemTime| {
            at.duration_since(SystemTime::UNIX_EPOCH).map_or(0, |since| since.as_secs())
        };
        let mut own = json!({
            "namespace": self.namespace,
            "serviceaccount": { "name": self.account, "uid": self.account_uid },
        });
        if let Some((name, uid)) = &self.bound {
            own["pod"] = json!({ "name": name, "uid": uid });
        }
        json!({
            "aud": self.audiences,
            "exp": seconds(self.expires),
            "iat": seconds(now),
            "iss": ISSUER,
            "kubernetes.io": own,
            "nbf": seconds(now),
            "sub": self.user(),
        })
    }
}

/// A random text of 256 bits.
pub(crate) fn new_secret() -> std::io::Result<String> {
    let mut bytes = [0; SIGNATURE_BYTES];
    File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(URL_SAFE_NO_PAD.encode(bytes))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing;

    #[test]
    fn a_token_is_valid_until_it_expires_or_its_account_or_pod_is_deleted() {
        let api = testing::api();
        let mut state = api.lock();
        let metadata = |name: &str| json!({"name": name, "namespace": "n", "uid": name});
        let pod = json!({
            "metadata": metadata("p"), "spec": {"serviceAccountName": "a"},
        });
        let start = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
        let at = |seconds: u64| start + Duration::from_secs(seconds);
        let result = api.tokens.of_pod(&state, &pod, "", 1000, start);
        let message = "failed to fetch token: serviceaccounts \"a\" not found";
        assert_eq!(result, Err(message.to_owned()));
        let account = state.store.put(Kind::ServiceAccount, json!({"metadata": metadata("a")}));
        let own = state.store.put(Kind::Pod, pod.clone());
        let token = |now| api.tokens.of_pod(&state, &pod, "", 1000, now).unwrap();
        let first = token(start);
        assert_eq!(token(at(799)), first);
        let second = token(at(800));
        assert_ne!(second, first);
        let claims = api.tokens.claims(&state, &first, at(999)).unwrap();
        assert_eq!(claims.user(), "system:serviceaccount:n:a");
        assert_eq!(claims.bound, Some(("p".to_owned(), "p".to_owned())));
        assert_eq!(api.tokens.claims(&state, &first, at(1000)), None, "its time is over");
        assert_eq!(api.tokens.claims(&state, "made-up", start), None);
        state.store.remove(&own.key);
        assert_eq!(api.tokens.claims(&state, &second, at(801)), None, "its pod is gone");
        let wanted = TokenSpec { audiences: vec!["x".to_owned()], bound: None, seconds: 10 };
        let (third, _) = api.tokens.issue(&account.key, "a", wanted, start).unwrap();
        assert!(api.tokens.claims(&state, &third, start).is_some());
        state.store.remove(&account.key);
        assert_eq!(api.tokens.claims(&state, &third, start), None, "its account is gone");
    }
}
