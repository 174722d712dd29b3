//! What the run knows about its credentials: which are stored, until when they are valid, and why a
//! renewal failed.

use std::collections::BTreeMap;

use posse_base::time::Millis;

/// The entries of `credentials`, by name.
#[derive(Clone, Debug, Default)]
pub struct Credentials {
    entries: BTreeMap<String, Entry>,
}

#[derive(Clone, Debug, Default)]
struct Entry {
    /// Executors can mount them.
    is_stored: bool,
    /// None: not known.
    expires: Option<Millis>,
    /// Why the last renewal failed; none after a success.
    failure: Option<String>,
    /// Why executors could not use them at the last turn.
    problem: Option<String>,
}

impl Entry {
    fn is_usable(&self, now: Millis) -> bool {
        self.is_stored && self.expires.is_none_or(|at| at > now)
    }

    fn refresh(&mut self, name: &str, now: Millis) {
        self.problem = (!self.is_usable(now)).then(|| {
            let state = if self.is_stored { "expired" } else { "not there yet" };
            let why = self.failure.as_ref().map_or_else(String::new, |why| format!(": {why}"));
            format!("{name}: {state}{why}")
        });
    }
}

impl Credentials {
    /// Nothing is stored yet.
    pub fn new(names: &[String]) -> Self {
        Self { entries: names.iter().map(|name| (name.clone(), Entry::default())).collect() }
    }

    /// The credentials of an entry are stored. `expires`: none if nobody knows.
    pub fn on_renewed(&mut self, name: &str, expires: Option<Millis>) {
        if let Some(entry) = self.entries.get_mut(name) {
            *entry = Entry { is_stored: true, expires, ..Entry::default() };
        }
    }

    /// A renewal failed. Credentials that are stored stay valid until they expire.
    pub fn on_failed(&mut self, name: &str, message: &str) {
        if let Some(entry) = self.entries.get_mut(name) {
            entry.failure = Some(message.to_owned());
        }
    }

    /// True if all entries were stored, even if some have expired since.
    pub fn are_stored(&self) -> bool {
        self.entries.values().all(|entry| entry.is_stored)
    }

    /// When the next credentials expire.
    pub fn next_expiry(&self, now: Millis) -> Option<Millis> {
        self.entries.values().filter_map(|entry| entry.expires).filter(|at| *at > now).min()
    }

    /// Looks at a turn whether executors can use all credentials.
    pub fn refresh(&mut self, now: Millis) {
        self.entries.iter_mut().for_each(|(name, entry)| entry.refresh(name, now));
    }

    /// Which entry executors cannot use, and why; none if they can use all. `needed`: the names of those
    /// that they need; none: all.
    pub fn problem(&self, needed: Option<&[String]>) -> Option<&String> {
        let is_needed = |name: &String| needed.is_none_or(|names| names.contains(name));
        let needed = self.entries.iter().filter(|(name, _)| is_needed(name));
        needed.filter_map(|(_, entry)| entry.problem.as_ref()).next()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credentials_are_usable_from_their_first_renewal_until_they_expire() {
        let mut credentials = Credentials::new(&["a".to_owned(), "b".to_owned()]);
        let problem = |credentials: &mut Credentials, at| {
            credentials.refresh(Millis(at));
            credentials.problem(None).map_or_else(String::new, String::clone)
        };
        assert_eq!(problem(&mut credentials, 0), "a: not there yet");
        let of =
            |names: &[&str]| -> Vec<String> { names.iter().map(ToString::to_string).collect() };
        for (names, want) in [(&["b"][..], Some("b: not there yet")), (&[], None)] {
            let got = credentials.problem(Some(&of(names))).map(String::as_str);
            assert_eq!(got, want, "{names:?}");
        }
        credentials.on_failed("a", "exit code 1: no KDC");
        assert_eq!(problem(&mut credentials, 0), "a: not there yet: exit code 1: no KDC");
        credentials.on_renewed("a", Some(Millis(100)));
        assert_eq!(problem(&mut credentials, 0), "b: not there yet");
        assert!(!credentials.are_stored());
        credentials.on_renewed("b", None);
        assert!(credentials.are_stored());
        assert_eq!(credentials.next_expiry(Millis(99)), Some(Millis(100)));

        credentials.on_failed("a", "no KDC");
        assert_eq!(problem(&mut credentials, 99), "", "what is stored stays valid");
        assert_eq!(problem(&mut credentials, 100), "a: expired: no KDC");
        assert!(credentials.are_stored());
        assert_eq!(credentials.next_expiry(Millis(100)), None);
        credentials.on_renewed("a", None);
        assert_eq!(problem(&mut credentials, 1_000), "");
    }
}
