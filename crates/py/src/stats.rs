//! Plain numbers for Python: `stats()` of the handles.

/// `set_fields!(dict, totals, added, sampled)`: puts fields of a value into a dict, each under its own name. It expands to one
/// `dict.set_item("added", totals.added)?` for each field.
macro_rules! set_fields {
    ($dict:ident, $from:expr, $($field:ident),+ $(,)?) => {
        $($dict.set_item(stringify!($field), $from.$field)?;)+
    };
}
pub(crate) use set_fields;
