//! Schema text: what the arrays of samples, records, rows and weights are called, and how large they are.
//!
//! The text is in every segment and in the handshake of every connection. Another process or host wrote it, so there is one
//! parser, and it trusts nothing: text, names, depth, dimensions and numbers of leaves are bounded, dtypes come from a list with
//! known sizes, and every product is checked.
//!
//! ```text
//! samples, records, rows   [leaf, …]
//! weights                  {"leaves":[leaf, …],"tree":node}
//! leaf, field              [name, dtype, [dimension, …]]          "*": a first dimension that differs from record to record;
//!                                                                 "n", any letter: the same in all leaves with that letter
//! name                     "obs/image"                            of a field also ["title","name"]; "" is padding
//! dtype                    "<f4", "|S5", "<M8[ns]", "void64", "bfloat16", …; "float32", … in weights; [field, …]
//! node                     number of a leaf, null, {"list":[node, …]}, {"tuple":[node, …]}, {"dict":[[key, node], …]}
//! key                      "w", 3, true
//! ```
//!
//! The grammar is a part of JSON, as Python's `json.dumps` writes it without spaces: ASCII, no fractions. The parser is written
//! by hand: `serde_json` would build a tree first, which has to be bounded and walked again, with a limit of depth that is not
//! ours. Not done here: what a dtype means to numpy. `rollway.schema.pytree` and `rollway.weights.tree` write the text.

use std::collections::HashSet;
use std::fmt;

/// The longest text, in bytes. The network allows less for samples and records.
pub const MAX_TEXT_BYTES: usize = 32 << 20;
/// Leaves of one text at most, and fields of structured dtypes.
pub const MAX_LEAVES: usize = 1 << 18;
/// The longest name of a leaf, a field or a key, in bytes.
pub const MAX_NAME_BYTES: usize = 4096;
/// Dimensions of a leaf at most: numpy's limit, less one for the batch.
pub const MAX_DIMENSIONS: usize = 63;
/// How deep the tree of weights may be.
pub const MAX_TREE_DEPTH: usize = 128;
/// How deep structured dtypes may be.
pub const MAX_FIELD_DEPTH: usize = 32;

/// Dtypes that numpy knows only with ml_dtypes, by the bytes of an element. In the text of samples and records float8_e5m2 is `<f1`.
const NAMED: &[(usize, &str)] = &[
    (
        1,
        "float4_e2m1fn float6_e2m3fn float6_e3m2fn float8_e3m4 float8_e4m3 float8_e4m3b11fnuz float8_e4m3fn \
         float8_e4m3fnuz float8_e5m2fnuz float8_e8m0fnu int1 int2 int4 uint1 uint2 uint4",
    ),
    (2, "bfloat16"),
    (4, "bcomplex32 complex32"),
];

/// Dtypes of weights, by the bytes of an element: numbers, in the byte order of the machine, by the names that numpy and torch share.
const WEIGHTS: &[(usize, &str)] = &[
    (1, "bool int8 uint8 float8_e4m3fn float8_e4m3fnuz float8_e5m2 float8_e5m2fnuz float8_e8m0fnu"),
    (2, "bfloat16 float16 int16 uint16"),
    (4, "float32 int32 uint32"),
    (8, "complex64 float64 int64 uint64"),
    (16, "complex128 float128"),
    (32, "complex256"),
];

/// The bytes of an element of a dtype that is in the list.
fn listed_bytes(list: &[(usize, &str)], name: &str) -> Option<usize> {
    list.iter().find(|(_, names)| names.split(' ').any(|listed| listed == name)).map(|(bytes, _)| *bytes)
}

/// Units of datetime64 and timedelta64.
const TIME_UNITS: &[&str] = &["Y", "M", "W", "D", "h", "m", "s", "ms", "us", "ns", "ps", "fs", "as"];

/// Why a text is no schema.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Invalid {
    pub what: &'static str,
    /// The number of the leaf in which it was found.
    pub leaf: Option<usize>,
}

impl fmt::Display for Invalid {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.leaf {
            Some(leaf) => write!(f, "{} (leaf {leaf})", self.what),
            None => f.write_str(self.what),
        }
    }
}

type Result<T, E = Invalid> = std::result::Result<T, E>;

/// An [`Invalid`] text, in words.
const fn wrong(what: &'static str) -> Invalid {
    Invalid { what, leaf: None }
}

const fn invalid<T>(what: &'static str) -> Result<T> {
    Err(wrong(what))
}

/// What one element of an array is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Dtype {
    /// One of the list, as it stands in the text.
    Plain(String),
    /// A structured one: its fields, in the order in which they lie in memory.
    Fields(Vec<Field>),
}

/// One field of a structured dtype.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Field {
    /// Another name, which numpy keeps beside the first.
    pub title: Option<String>,
    /// Empty: padding.
    pub name: String,
    pub dtype: Dtype,
    pub dims: Vec<usize>,
}

/// One array.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leaf {
    pub path: String,
    pub dtype: Dtype,
    /// Bytes of one element.
    pub item_bytes: usize,
    /// Whether there is one more dimension in front, which differs from record to record.
    pub ragged: bool,
    /// The letter of that dimension: all leaves of a record with this letter are equally long.
    pub tie: Option<char>,
    pub dims: Vec<usize>,
    /// Bytes of the whole, or of one row where it is ragged.
    pub bytes: usize,
}

/// The structure around the leaves of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Node {
    /// The number of a leaf.
    Leaf(usize),
    /// Python's `None`.
    Nothing,
    List(Vec<Node>),
    Tuple(Vec<Node>),
    Dict(Vec<(Key, Node)>),
}

/// A key of a dict.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Key {
    Text(String),
    Number(i64),
    Flag(bool),
}

/// The schema of weights.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightSchema {
    /// Sorted by path; no two have the same.
    pub leaves: Vec<Leaf>,
    pub tree: Node,
}

impl WeightSchema {
    /// Whether the leaves have these sizes.
    pub fn fits(&self, leaf_bytes: &[usize]) -> bool {
        self.leaves.iter().map(|leaf| leaf.bytes).eq(leaf_bytes.iter().copied())
    }
}

/// Reads the schema of samples or records. Two leaves of samples may have the same path.
pub fn leaves(text: &[u8]) -> Result<Vec<Leaf>> {
    let mut reader = Reader::new(text)?;
    let leaves = reader.leaves(Reader::dtype)?;
    reader.end()?;
    Ok(leaves)
}

/// Reads the schema of the rows of a table: no two leaves have the same name, and none is ragged.
pub fn columns(text: &[u8]) -> Result<Vec<Leaf>> {
    let leaves = leaves(text)?;
    let mut names = HashSet::with_capacity(leaves.len());
    for (number, leaf) in leaves.iter().enumerate() {
        if leaf.ragged {
            return Err(Invalid { what: "a field of a row is ragged", leaf: Some(number) });
        }
        if !names.insert(&leaf.path) {
            return Err(Invalid { what: "two leaves have the same name", leaf: Some(number) });
        }
    }
    Ok(leaves)
}

/// Reads the schema of weights.
pub fn weights(text: &[u8]) -> Result<WeightSchema> {
    let mut reader = Reader::new(text)?;
    reader.word(b"{\"leaves\":")?;
    let leaves = reader.leaves(|reader, _| reader.weight_dtype())?;
    if leaves.iter().any(|leaf| leaf.ragged) {
        return invalid("a leaf of weights is ragged");
    }
    if !leaves.is_sorted_by(|one, next| one.path < next.path) {
        return invalid("the leaves of weights are not sorted by their paths, or two have the same");
    }
    reader.word(b",\"tree\":")?;
    reader.left = 2 * MAX_LEAVES; // Branches, from here on.
    let mut met = vec![false; leaves.len()];
    let tree = reader.node(&mut met, MAX_TREE_DEPTH)?;
    if met.contains(&false) {
        return invalid("a leaf is not in the tree");
    }
    reader.word(b"}")?;
    reader.end()?;
    Ok(WeightSchema { leaves, tree })
}

/// Bytes of one element of a dtype of samples and records, by its text; `None` when it is not in the list.
fn item_bytes(text: &str) -> Option<usize> {
    if let Some(bytes) = listed_bytes(NAMED, text) {
        return Some(bytes);
    }
    if let Some(bits) = text.strip_prefix("void") {
        return number(bits).filter(|bits| bits.is_multiple_of(8)).map(|bits| bits / 8);
    }
    let mut letters = text.chars();
    let (order, kind, size) = (letters.next()?, letters.next()?, letters.as_str());
    match (order, kind, size) {
        ('|', 'b' | 'i' | 'u', "1") | ('<', 'f', "1") => Some(1),
        ('|', 'S' | 'V', _) => number(size),
        ('<' | '>', 'i' | 'u', "2" | "4" | "8") => number(size),
        ('<' | '>', 'f', "2" | "4" | "8" | "16") => number(size),
        ('<' | '>', 'c', "8" | "16" | "32") => number(size),
        ('<' | '>', 'U', _) => number(size)?.checked_mul(4),
        ('<' | '>', 'M' | 'm', _) => is_time(size.strip_prefix('8')?).then_some(8),
        _ => None,
    }
}

/// Whether it is the unit of a time: nothing, `[ns]`, `[25s]`.
fn is_time(unit: &str) -> bool {
    let Some(inner) = unit.strip_prefix('[').and_then(|rest| rest.strip_suffix(']')) else {
        return unit.is_empty();
    };
    let name = inner.trim_start_matches(|letter: char| letter.is_ascii_digit());
    let count = &inner[..inner.len() - name.len()];
    let counts =
        count.is_empty() || number(count).is_some_and(|count| (1..=i32::MAX as usize).contains(&count));
    counts && TIME_UNITS.contains(&name)
}

/// A whole number as it is written by a machine: digits, and no zeros in front.
fn number(digits: &str) -> Option<usize> {
    let plain = digits == "0" || !digits.starts_with('0');
    let digits = Some(digits).filter(|digits| plain && digits.bytes().all(|byte| byte.is_ascii_digit()))?;
    digits.parse().ok().filter(|&number: &usize| number <= isize::MAX as usize)
}

/// Bytes of so many elements. A dimension of 0 makes it nothing, but the others must be possible nevertheless.
fn array_bytes(item_bytes: usize, dims: &[usize]) -> Option<usize> {
    let most = dims.iter().try_fold(item_bytes, |bytes, &dim| bytes.checked_mul(dim.max(1)))?;
    (most <= isize::MAX as usize).then(|| if dims.contains(&0) { 0 } else { most })
}

/// Walks over a text.
struct Reader<'a> {
    text: &'a [u8],
    at: usize,
    /// How many leaves and fields may still come.
    left: usize,
}

impl<'a> Reader<'a> {
    fn new(text: &'a [u8]) -> Result<Reader<'a>> {
        if text.len() > MAX_TEXT_BYTES {
            return invalid("it is too long");
        }
        Ok(Reader { text, at: 0, left: MAX_LEAVES })
    }

    fn peek(&self) -> Option<u8> {
        self.text.get(self.at).copied()
    }

    /// Takes these bytes, if they are next.
    fn take(&mut self, word: &[u8]) -> bool {
        let found = self.text[self.at..].starts_with(word);
        self.at += if found { word.len() } else { 0 };
        found
    }

    fn word(&mut self, word: &'static [u8]) -> Result<()> {
        if self.take(word) { Ok(()) } else { invalid("it is not of the form of a schema") }
    }

    fn end(&self) -> Result<()> {
        if self.at == self.text.len() { Ok(()) } else { invalid("something follows it") }
    }

    /// `[item,item,…]`; each item is read by `item`, which is told its number.
    fn list(&mut self, mut item: impl FnMut(&mut Self, usize) -> Result<()>) -> Result<()> {
        self.word(b"[")?;
        if self.take(b"]") {
            return Ok(());
        }
        for number in 0.. {
            item(self, number)?;
            if self.take(b"]") {
                break;
            }
            self.word(b",")?;
        }
        Ok(())
    }

    /// Counts one more leaf or field.
    fn count(&mut self) -> Result<()> {
        self.left = self.left.checked_sub(1).ok_or(wrong("it has too many leaves"))?;
        Ok(())
    }

    /// `[leaf,…]`, with at least one.
    fn leaves(&mut self, dtype: fn(&mut Self, usize) -> Result<(Dtype, usize)>) -> Result<Vec<Leaf>> {
        let mut leaves = Vec::new();
        self.list(|reader, number| {
            let leaf = reader.leaf(dtype).map_err(|wrong| Invalid { leaf: Some(number), ..wrong })?;
            leaves.push(leaf);
            Ok(())
        })?;
        if leaves.is_empty() { invalid("it has no leaves") } else { Ok(leaves) }
    }

    fn leaf(&mut self, dtype: fn(&mut Self, usize) -> Result<(Dtype, usize)>) -> Result<Leaf> {
        self.count()?;
        self.word(b"[")?;
        let path = self.string()?;
        self.word(b",")?;
        let (dtype, item_bytes) = dtype(self, MAX_FIELD_DEPTH)?;
        if item_bytes == 0 {
            return invalid("a dtype has no bytes");
        }
        self.word(b",")?;
        let (ragged, tie, dims) = self.dims(true)?;
        self.word(b"]")?;
        let bytes = array_bytes(item_bytes, &dims).ok_or(wrong("a leaf is larger than an address space"))?;
        Ok(Leaf { path, dtype, item_bytes, ragged, tie, dims, bytes })
    }

    /// `[4,2]`, or `["*",2]` or `["n",2]` where that is allowed.
    fn dims(&mut self, may_be_ragged: bool) -> Result<(bool, Option<char>, Vec<usize>)> {
        let (mut ragged, mut tie, mut dims) = (false, None, Vec::new());
        self.list(|reader, number| {
            if number >= MAX_DIMENSIONS {
                return invalid("it has too many dimensions");
            }
            if number == 0 && may_be_ragged && reader.peek() == Some(b'"') {
                ragged = true;
                tie = match reader.string()?.as_bytes() {
                    b"*" => None,
                    [letter] if letter.is_ascii_alphabetic() => Some(*letter as char),
                    _ => return invalid("a first dimension is neither a number nor * nor a letter"),
                };
            } else {
                dims.push(reader.number()?);
            }
            Ok(())
        })?;
        Ok((ragged, tie, dims))
    }

    /// A dtype of samples and records, and the bytes of one element.
    fn dtype(&mut self, depth: usize) -> Result<(Dtype, usize)> {
        if self.peek() == Some(b'"') {
            let text = self.string()?;
            let bytes = item_bytes(&text).ok_or(wrong("a dtype is not known"))?;
            return Ok((Dtype::Plain(text), bytes));
        }
        if depth == 0 {
            return invalid("a dtype is too deep");
        }
        let (mut fields, mut total) = (Vec::new(), 0usize);
        self.list(|reader, _| {
            let (field, bytes) = reader.field(depth - 1)?;
            let sum = total.checked_add(bytes).filter(|&total| total <= isize::MAX as usize);
            total = sum.ok_or(wrong("a dtype is larger than an address space"))?;
            fields.push(field);
            Ok(())
        })?;
        Ok((Dtype::Fields(fields), total))
    }

    fn field(&mut self, depth: usize) -> Result<(Field, usize)> {
        self.count()?;
        self.word(b"[")?;
        let (title, name) = if self.take(b"[") {
            let title = self.string()?;
            self.word(b",")?;
            let name = self.string()?;
            self.word(b"]")?;
            (Some(title), name)
        } else {
            (None, self.string()?)
        };
        self.word(b",")?;
        let (dtype, item_bytes) = self.dtype(depth)?;
        self.word(b",")?;
        let (_, _, dims) = self.dims(false)?;
        self.word(b"]")?;
        let bytes = array_bytes(item_bytes, &dims).ok_or(wrong("a field is larger than an address space"))?;
        Ok((Field { title, name, dtype, dims }, bytes))
    }

    /// A dtype of weights, and the bytes of one element.
    fn weight_dtype(&mut self) -> Result<(Dtype, usize)> {
        let text = self.string()?;
        let bytes = listed_bytes(WEIGHTS, &text).ok_or(wrong("a dtype of weights is not known"))?;
        Ok((Dtype::Plain(text), bytes))
    }

    /// The structure of weights. `met`: which leaves were in it so far.
    fn node(&mut self, met: &mut [bool], depth: usize) -> Result<Node> {
        if self.take(b"null") {
            return Ok(Node::Nothing);
        }
        if self.peek().is_some_and(|byte| byte.is_ascii_digit()) {
            let leaf = self.number()?;
            return match met.get_mut(leaf).map(|met| std::mem::replace(met, true)) {
                Some(false) => Ok(Node::Leaf(leaf)),
                Some(true) => invalid("a leaf is in the tree twice"),
                None => invalid("the tree has a leaf that is none"),
            };
        }
        if depth == 0 {
            return invalid("the tree is too deep");
        }
        let mut children = Vec::new();
        let node = if self.take(b"{\"dict\":") {
            let mut entries = Vec::new();
            self.list(|reader, _| {
                reader.branch()?;
                reader.word(b"[")?;
                let key = reader.key()?;
                reader.word(b",")?;
                entries.push((key, reader.node(met, depth - 1)?));
                reader.word(b"]")
            })?;
            Node::Dict(entries)
        } else {
            let is_list = self.take(b"{\"list\":");
            if !is_list {
                self.word(b"{\"tuple\":")?;
            }
            self.list(|reader, _| {
                reader.branch()?;
                children.push(reader.node(met, depth - 1)?);
                Ok(())
            })?;
            if is_list { Node::List(children) } else { Node::Tuple(children) }
        };
        self.word(b"}")?;
        Ok(node)
    }

    /// Counts one more branch of the tree. There may be empty ones beside those of the leaves, and chains of single ones.
    fn branch(&mut self) -> Result<()> {
        self.count().or(invalid("the tree has too many branches"))
    }

    fn key(&mut self) -> Result<Key> {
        if self.peek() == Some(b'"') {
            return Ok(Key::Text(self.string()?));
        }
        if self.take(b"true") {
            return Ok(Key::Flag(true));
        }
        if self.take(b"false") {
            return Ok(Key::Flag(false));
        }
        let negative = self.take(b"-");
        let size = self.number()? as i64; // At most `isize::MAX`.
        Ok(Key::Number(if negative { -size } else { size }))
    }

    fn number(&mut self) -> Result<usize> {
        let rest = &self.text[self.at..];
        let length = rest.iter().take(20).take_while(|byte| byte.is_ascii_digit()).count();
        // Digits are text.
        let digits = std::str::from_utf8(&rest[..length]).unwrap_or_default();
        self.at += length;
        number(digits).ok_or(wrong("a number is out of range"))
    }

    fn next(&mut self) -> Result<u8> {
        let byte = self.peek().ok_or(wrong("it ends in the middle"))?;
        self.at += 1;
        Ok(byte)
    }

    fn string(&mut self) -> Result<String> {
        self.word(b"\"")?;
        let mut string = String::new();
        loop {
            match self.next()? {
                b'"' => return Ok(string),
                b'\\' => string.push(self.escape()?),
                byte @ 0x20..=0x7f => string.push(byte as char),
                _ => return invalid("it is not ASCII"),
            }
            if string.len() > MAX_NAME_BYTES {
                return invalid("a name is too long");
            }
        }
    }

    fn escape(&mut self) -> Result<char> {
        Ok(match self.next()? {
            byte @ (b'"' | b'\\') => byte as char,
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'n' => '\n',
            b'r' => '\r',
            b't' => '\t',
            b'u' => {
                let first = self.hex()?;
                let is_pair = matches!(first, 0xd800..0xdc00) && self.take(b"\\u");
                let second = if is_pair { Some(self.hex()?) } else { None };
                let mut letters = char::decode_utf16(std::iter::once(first).chain(second));
                match (letters.next(), letters.next()) {
                    (Some(Ok(letter)), None) => letter,
                    _ => return invalid("half of a character stands alone"),
                }
            }
            _ => return invalid("an escape is not known"),
        })
    }

    fn hex(&mut self) -> Result<u16> {
        let digits =
            self.text.get(self.at..self.at + 4).filter(|digits| digits.iter().all(u8::is_ascii_hexdigit));
        let value = digits.and_then(|digits| u16::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok());
        self.at += 4;
        value.ok_or(wrong("an escape is not known"))
    }
}
