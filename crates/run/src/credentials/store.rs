//! The Secret of an entry of `credentials`: written after each renewal, and deleted at the end of the
//! run. A Secret that is not posse's is never changed. `task_secrets` reads and names that of the tasks by this, too.

use std::sync::Arc;

use log::debug;
use serde_json::Value;

use posse_core::model::refusal::{Refusal, RefusalClass};
use posse_kube::api::objects::{Kind, Objects};
use posse_wire::k8s::common_metadata::CommonMetadata;
use posse_wire::k8s::labels::Selection;
use posse_wire::pod::build::OwnerRef;
use posse_wire::pod::credential_files::{
    CredentialFiles, is_last_writer, is_ours, secret, stored_files,
};

/// How often a write is tried if others change the Secret at the same time.
const TRIES_MAX: u32 = 3;

/// The Secret of one entry.
#[derive(Clone, Debug)]
pub struct SecretStore {
    pub objects: Objects,
    pub name: String,
    pub selection: Selection,
    /// The driver's pod: the garbage collector deletes the Secret with it.
    pub owner: Option<OwnerRef>,
    /// Labels and annotations beside posse's own.
    pub common: Arc<CommonMetadata>,
    /// The verb that changes it: `update` or `patch`.
    pub change: &'static str,
}

/// Why a Secret cannot be read or written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StoreProblem {
    /// With what to do about it.
    pub what: String,
    /// Nobody has to do anything about it: another try may succeed.
    pub may_pass: bool,
}

impl From<StoreProblem> for String {
    fn from(problem: StoreProblem) -> Self {
        problem.what
    }
}

impl SecretStore {
    /// Creates the Secret or replaces what is in it.
    ///
    /// # Errors
    /// The Secret is not posse's, or the server refuses a request; with what to do about it.
    pub fn write(&self, files: &CredentialFiles) -> Result<(), String> {
        for _ in 0..TRIES_MAX {
            let before = self.read()?;
            let (selection, owner) = (&self.selection, self.owner.as_ref());
            let object = secret(&self.name, selection, owner, &self.common, files, before.as_ref());
            let written = match &before {
                None => self.objects.create(Kind::Secret, &object),
                Some(_) => self.objects.replace(Kind::Secret, &self.name, &object),
            };
            match written {
                Ok(_) => return Ok(()),
                // Another process has created, changed or deleted it meanwhile.
                Err(refusal) if refusal.is_outdated() => {
                    debug!("secret {} has changed: {refusal}", self.name);
                }
                Err(refusal) => return Err(self.describe(&refusal).what),
            }
        }
        Err(format!("secret {} is changed by others all the time", self.name))
    }

    /// The files that this instance stored last, in an earlier process; none if there are none.
    ///
    /// # Errors
    /// As for `check`.
    pub fn files_of_ours(&self) -> Result<CredentialFiles, String> {
        let found = self.read()?;
        Ok(found.map(|found| stored_files(&found, &self.selection)).unwrap_or_default())
    }

    /// Whether posse may read the Secret, and is to write it. Changes nothing.
    ///
    /// # Errors
    /// The Secret is not posse's, or the server refuses the request; with what to do about it.
    pub fn check(&self) -> Result<(), String> {
        self.read().map(drop).map_err(String::from)
    }

    /// True if the Secret is there. Also if nobody knows.
    pub fn is_there(&self) -> bool {
        !matches!(self.objects.get(Kind::Secret, &self.name), Ok(None))
    }

    /// Deletes the Secret, unless another instance has written it since.
    ///
    /// # Errors
    /// The server's refusal.
    pub fn remove(&self) -> Result<(), String> {
        let describe = |refusal: Refusal| self.describe(&refusal).what;
        let Some(found) = self.objects.get(Kind::Secret, &self.name).map_err(describe)? else {
            return Ok(());
        };
        if !is_last_writer(&found, &self.selection) {
            debug!("secret {} belongs to another run now: it stays", self.name);
            return Ok(());
        }
        let text = |field: &str| found["metadata"][field].as_str().unwrap_or_default().to_owned();
        let (uid, version) = (text("uid"), text("resourceVersion"));
        self.objects.delete_version(Kind::Secret, &self.name, &uid, &version).map_err(describe)
    }

    /// The Secret, if there is one.
    pub(crate) fn read(&self) -> Result<Option<Value>, StoreProblem> {
        let found = self.objects.get(Kind::Secret, &self.name);
        let Some(found) = found.map_err(|refusal| self.describe(&refusal))? else {
            return Ok(None);
        };
        let Selection { app, .. } = &self.selection;
        if !is_ours(&found, app) {
            let what = format!(
                "secret {} exists and is not posse's for application {app} (it lacks posse's \
                 labels), so posse does not touch it: take another name for `secret`, or delete it \
                 if nobody needs it",
                self.name
            );
            return Err(StoreProblem { what, may_pass: false });
        }
        if found["metadata"]["deletionTimestamp"].is_string() {
            let what = format!("secret {} is being deleted", self.name);
            return Err(StoreProblem { what, may_pass: true });
        }
        Ok(Some(found))
    }

    /// Which permissions to grant.
    pub fn remedy(&self) -> String {
        format!(
            "grant create for secrets, and get, {} and delete for the secret {}, as \
             deploy/rbac.yaml shows",
            self.change, self.name
        )
    }

    /// What a refusal of the server means.
    pub(crate) fn describe(&self, refusal: &Refusal) -> StoreProblem {
        use RefusalClass::{Forbidden, Invalid, NamespaceGone};
        let mut what = format!("secret {}: {refusal}", self.name);
        if refusal.class == Forbidden {
            what.push_str(&format!("; {}", self.remedy()));
        }
        StoreProblem {
            what,
            may_pass: ![Forbidden, Invalid, NamespaceGone].contains(&refusal.class),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use serde_json::json;

    use super::*;
    use posse_testing::{Answer, TestServer, plain_client};

    /// A server that gives these answers in turn.
    fn server(answers: Vec<(u16, Value)>) -> TestServer {
        let answers = Mutex::new(answers.into_iter());
        TestServer::start(None, move |asked| {
            let (status, body) = answers.lock().unwrap().next().unwrap_or_else(|| {
                panic!("an unexpected request: {}", asked.line());
            });
            Answer::json(status, body.to_string())
        })
    }

    fn store(server: &TestServer) -> SecretStore {
        SecretStore {
            objects: Objects::new(plain_client(server.address), Some("n")),
            name: "wc-hdfs".to_owned(),
            selection: Selection { app: "wc".to_owned(), instance: "mine".to_owned() },
            owner: None,
            common: Arc::default(),
            change: "update",
        }
    }

    fn stored(instance: &str, version: &str) -> Value {
        let selection = Selection { app: "wc".to_owned(), instance: instance.to_owned() };
        let (common, files) = (CommonMetadata::default(), CredentialFiles::new());
        let mut stored = secret("wc-hdfs", &selection, None, &common, &files, None);
        stored["metadata"]["uid"] = "u1".into();
        stored["metadata"]["resourceVersion"] = version.into();
        stored
    }

    fn status(reason: &str, code: u16) -> (u16, Value) {
        (code, json!({"kind": "Status", "reason": reason, "message": reason, "code": code}))
    }

    /// The requests since the last call.
    fn asked(server: &TestServer) -> Vec<(String, Value)> {
        let path = "/api/v1/namespaces/n/secrets";
        let line = |line: &str| line.replace(path, "").replace(" HTTP/1.1", "");
        let body = |bytes: &[u8]| serde_json::from_slice(bytes).unwrap_or_default();
        server.seen().iter().map(|asked| (line(asked.line()), body(&asked.body))).collect()
    }

    #[test]
    fn a_write_that_meets_another_one_is_repeated() {
        let server = server(vec![
            status("NotFound", 404),
            status("AlreadyExists", 409),
            (200, stored("other", "7")),
            status("Conflict", 409),
            (200, stored("other", "8")),
            (200, stored("mine", "9")),
        ]);
        let files = CredentialFiles::from([("ccache".to_owned(), b"abc".to_vec())]);
        store(&server).write(&files).unwrap();
        let put = "PUT /wc-hdfs?fieldManager=posse";
        let (get, post) = ("GET /wc-hdfs", "POST ?fieldManager=posse");
        let asked = asked(&server);
        let lines: Vec<&str> = asked.iter().map(|(line, _)| line.as_str()).collect();
        assert_eq!(lines, [get, post, get, put, get, put]);
        let last = &asked[5].1;
        assert_eq!(last["metadata"]["resourceVersion"], "8");
        assert_eq!(last["metadata"]["labels"]["posse.dev/instance"], "mine");
        assert_eq!(last["data"], json!({"ccache": "YWJj"}));
    }

    #[test]
    fn a_secret_that_another_run_wrote_last_is_not_deleted() {
        let other = server(vec![(200, stored("other", "7"))]);
        store(&other).remove().unwrap();
        assert_eq!(asked(&other).len(), 1);
        let gone = server(vec![status("NotFound", 404)]);
        store(&gone).remove().unwrap();
        let mine = server(vec![(200, stored("mine", "7")), status("Conflict", 409)]);
        store(&mine).remove().unwrap();
        let (_, delete) = asked(&mine).remove(1);
        assert_eq!(delete["preconditions"], json!({"uid": "u1", "resourceVersion": "7"}));
    }

    #[test]
    fn what_is_not_posses_is_refused_before_anything_is_written() {
        let mut terminating = stored("mine", "7");
        terminating["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z".into();
        for (found, want) in [
            ((200, json!({"metadata": {"name": "wc-hdfs"}})), "exists and is not posse's"),
            ((200, terminating), "secret wc-hdfs is being deleted"),
            (status("Forbidden", 403), "grant create for secrets, and get, update and delete"),
        ] {
            let server = server(vec![found]);
            let problem = store(&server).write(&CredentialFiles::new()).unwrap_err();
            assert!(problem.contains(want), "{problem}");
            assert_eq!(asked(&server).len(), 1);
        }
    }
}
