//! The kinds of the authentication and authorization reviews: they are posted and answered, and not
//! stored.

/// A kind of review.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Review {
    pub(crate) api_version: &'static str,
    pub(crate) plural: &'static str,
    pub(crate) kind: &'static str,
}

const AUTHENTICATION: &str = "authentication.k8s.io/v1";
const AUTHORIZATION: &str = "authorization.k8s.io/v1";
pub(crate) const SELF: &str = "SelfSubjectAccessReview";
pub(crate) const SELF_USER: &str = "SelfSubjectReview";
pub(crate) const SUBJECT: &str = "SubjectAccessReview";
pub(crate) const TOKEN: &str = "TokenReview";

/// In alphabetical order.
pub(crate) const REVIEWS: &[Review] = &[
    row(AUTHORIZATION, "selfsubjectaccessreviews", SELF),
    row(AUTHORIZATION, "subjectaccessreviews", SUBJECT),
    row(AUTHENTICATION, "selfsubjectreviews", SELF_USER),
    row(AUTHENTICATION, "tokenreviews", TOKEN),
];

const fn row(api_version: &'static str, plural: &'static str, kind: &'static str) -> Review {
    Review { api_version, plural, kind }
}
