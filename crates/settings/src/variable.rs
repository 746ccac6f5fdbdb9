//! What is known about a variable.

/// One environment variable. The constants of [`crate::registry`] are all there are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Variable {
    /// Its name in the environment.
    pub name: &'static str,
    /// What its value is.
    pub kind: Kind,
    /// The value that counts when it is not set; `None`: there is none.
    pub default: Option<&'static str>,
    /// Whether setting it does something.
    pub status: Status,
    /// What it is for: a paragraph, taken from the documentation of its constant.
    pub meaning: &'static str,
}

/// What a variable's value is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// On or off; see [`crate::value::switch`].
    Switch,
    /// A whole number that is not negative.
    Count,
    /// A whole number of bytes.
    Bytes,
    /// A number of seconds, fractions allowed.
    Seconds,
    /// A number of milliseconds, fractions allowed.
    Milliseconds,
    /// A number that is not negative, fractions allowed.
    Number,
    /// Numbers of processor cores, separated by commas.
    Cores,
    /// One of these words, in any case.
    Word(&'static [&'static str]),
    /// The path of a file or folder.
    Path,
    /// Anything.
    Text,
}

/// Whether setting a variable does something.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Status {
    /// It does what its meaning says.
    Honoured,
    /// It is taken without complaint and changes nothing, for this reason.
    Accepted(&'static str),
    /// It asks for something that cannot be had here. When it is set to something else than its default, this is said once.
    Explained(&'static str),
}

/// Variables that belong together, as they stand on the page.
#[derive(Clone, Copy, Debug)]
pub struct Group {
    /// The headline.
    pub title: &'static str,
    /// What they have in common.
    pub about: &'static str,
    /// The variables.
    pub variables: &'static [Variable],
}

/// Defines documented constants, and the slice `ALL` of them. What stands in the doc comment is the variable's meaning on
/// the generated page, so that it is written once:
///
/// ```text
/// variables! {
///     /// What it is for.
///     CACHE_CAPACITY = "HOROVOD_CACHE_CAPACITY": Kind::Count, Some("1024"), Status::Honoured;
/// }
/// ```
macro_rules! variables {
    ($(
        $(#[doc = $meaning:literal])+
        $constant:ident = $name:literal: $kind:expr, $default:expr, $status:expr;
    )+) => {
        $(
            $(#[doc = $meaning])+
            pub const $constant: $crate::Variable = $crate::Variable {
                name: $name,
                kind: $kind,
                default: $default,
                status: $status,
                // Every line of a doc comment begins with a space, which keeps the words apart here.
                meaning: concat!($($meaning),+).trim_ascii(),
            };
        )+

        /// All variables of this group.
        pub const ALL: &[$crate::Variable] = &[$($constant),+];
    };
}

pub(crate) use variables;
