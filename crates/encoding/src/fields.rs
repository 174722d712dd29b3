//! What posse reads of an object of the API, whatever its encoding: JSON or protobuf.

use std::borrow::Cow;

/// A struct that is filled field by field. Unknown fields are skipped.
pub trait Fields<'a> {
    /// The fields' numbers in protobuf with their names in JSON
    /// (`generated.proto` of k8s.io/api/core/v1 and k8s.io/apimachinery/pkg/apis/meta/v1).
    const NUMBERS: &'static [(u32, &'static str)];

    /// Reads the value of `key`, or leaves it to be skipped.
    fn field<V: Value<'a>>(&mut self, key: &str, value: &mut V) -> Result<(), V::Error>;
}

/// A value that can be read once. In protobuf each item of a list and each entry of a map is a value of
/// its own, so that these are added to what is there.
pub trait Value<'a>: Sized {
    /// Why it cannot be read.
    type Error;

    /// A string. Empty for null, as API servers have it.
    fn text(&mut self) -> Result<Cow<'a, str>, Self::Error>;

    /// A time as JSON has it (RFC 3339). Empty for null.
    fn time(&mut self) -> Result<Cow<'a, str>, Self::Error> {
        self.text()
    }

    /// A quantity as JSON has it. Empty for null.
    fn quantity(&mut self) -> Result<Cow<'a, str>, Self::Error> {
        self.text()
    }

    /// An integer. None for null.
    fn number(&mut self) -> Result<Option<i64>, Self::Error>;

    /// A boolean. False for null.
    fn is_true(&mut self) -> Result<bool, Self::Error>;

    /// True unless the value is null.
    fn is_given(&mut self) -> Result<bool, Self::Error>;

    /// An object. None for null.
    fn fields<T: Default + Fields<'a>>(&mut self) -> Result<Option<T>, Self::Error>;

    /// The value as it is encoded.
    fn raw(&mut self) -> Result<&'a [u8], Self::Error>;

    /// Calls `each` for the objects of a list, with None for null.
    fn each<T: Default + Fields<'a>>(
        &mut self,
        each: &mut dyn FnMut(Option<T>),
    ) -> Result<(), Self::Error>;

    /// Adds the objects of a list, without nulls.
    fn items<T: Default + Fields<'a>>(&mut self, items: &mut Vec<T>) -> Result<(), Self::Error> {
        self.each(&mut |item| items.extend(item))
    }

    /// Adds the entries of a map, whose keys are fields.
    fn entries<T: Default + Fields<'a>>(&mut self, map: &mut T) -> Result<(), Self::Error>;
}
