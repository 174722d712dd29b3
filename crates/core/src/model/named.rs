//! Enums whose values have documented names.

/// An enum, the name of each value, and all values.
macro_rules! named {
    ($(#[$doc:meta])* pub enum $name:ident {
        $($(#[$of:meta])* $value:ident = $word:literal,)+
    }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub enum $name { $($(#[$of])* $value),+ }

        impl $name {
            /// All values, in this order.
            pub const ALL: [Self; [$($word),+].len()] = [$(Self::$value),+];

            /// The documented name.
            pub const fn as_str(self) -> &'static str {
                match self { $(Self::$value => $word),+ }
            }
        }
    };
}
pub(crate) use named;
