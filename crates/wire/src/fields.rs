//! How the fields of a struct are read.

/// Implements `Fields`: each field's name in JSON, its number in protobuf and how it is read.
/// A field without a number is in JSON only.
macro_rules! fields {
    ($name:ty: |$self:ident, $value:ident| $($key:literal $(($number:literal))? => $read:expr,)*) => {
        impl<'a> posse_encoding::fields::Fields<'a> for $name {
            const NUMBERS: &'static [(u32, &'static str)] = &[$($(($number, $key),)?)*];

            fn field<V>(&mut $self, key: &str, $value: &mut V) -> Result<(), V::Error>
            where
                V: posse_encoding::fields::Value<'a>,
            {
                match key {
                    $($key => $read,)*
                    _ => {}
                }
                Ok(())
            }
        }
    };
}

pub(crate) use fields;
