//! Schema text: what is read, what is refused, and that no text at all is more than refused.

use proptest::collection::vec;
use proptest::prelude::*;
use rollway_core::schema::{
    self, Dtype, Field, Key, Leaf, MAX_DIMENSIONS, MAX_FIELD_DEPTH, MAX_LEAVES, MAX_NAME_BYTES,
    MAX_TEXT_BYTES, MAX_TREE_DEPTH, Node, WeightSchema,
};

// ── writing, as Python's json.dumps does ────────────────────────────────────────────────────────────────────────────

fn quoted(text: &str) -> String {
    let mut out = String::from("\"");
    for letter in text.chars() {
        match letter {
            '"' | '\\' => out.extend(['\\', letter]),
            '\n' => out.push_str("\\n"),
            ' '..='~' => out.push(letter),
            _ => letter
                .encode_utf16(&mut [0; 2])
                .iter()
                .for_each(|unit| out.push_str(&format!("\\u{unit:04x}"))),
        }
    }
    out + "\""
}

fn listed(items: impl Iterator<Item = String>) -> String {
    format!("[{}]", items.collect::<Vec<_>>().join(","))
}

fn dims_text(first: Option<char>, dims: &[usize]) -> String {
    listed(first.map(|first| format!("\"{first}\"")).into_iter().chain(dims.iter().map(usize::to_string)))
}

fn dtype_text(dtype: &Dtype) -> String {
    match dtype {
        Dtype::Plain(text) => quoted(text),
        Dtype::Fields(fields) => listed(fields.iter().map(|Field { title, name, dtype, dims }| {
            let name = match title {
                Some(title) => format!("[{},{}]", quoted(title), quoted(name)),
                None => quoted(name),
            };
            format!("[{name},{},{}]", dtype_text(dtype), dims_text(None, dims))
        })),
    }
}

fn leaves_text(leaves: &[Leaf]) -> String {
    listed(leaves.iter().map(|leaf| {
        let dims = dims_text(leaf.ragged.then(|| leaf.tie.unwrap_or('*')), &leaf.dims);
        format!("[{},{},{dims}]", quoted(&leaf.path), dtype_text(&leaf.dtype))
    }))
}

fn node_text(node: &Node) -> String {
    match node {
        Node::Leaf(number) => number.to_string(),
        Node::Nothing => "null".to_owned(),
        Node::List(children) => format!(r#"{{"list":{}}}"#, listed(children.iter().map(node_text))),
        Node::Tuple(children) => format!(r#"{{"tuple":{}}}"#, listed(children.iter().map(node_text))),
        Node::Dict(entries) => {
            let entry = |(key, child): &(Key, Node)| {
                let key = match key {
                    Key::Text(text) => quoted(text),
                    Key::Number(number) => number.to_string(),
                    Key::Flag(flag) => flag.to_string(),
                };
                format!("[{key},{}]", node_text(child))
            };
            format!(r#"{{"dict":{}}}"#, listed(entries.iter().map(entry)))
        }
    }
}

fn weights_text(schema: &WeightSchema) -> String {
    format!(r#"{{"leaves":{},"tree":{}}}"#, leaves_text(&schema.leaves), node_text(&schema.tree))
}

// ── what is read ────────────────────────────────────────────────────────────────────────────────────────────────────

fn one(dtype: &str, dims: &str) -> Result<Leaf, schema::Invalid> {
    schema::leaves(format!(r#"[["x",{dtype},{dims}]]"#).as_bytes()).map(|mut leaves| leaves.remove(0))
}

#[test]
fn every_dtype_has_its_size() {
    for (dtype, bytes) in [
        ("|b1", 1),
        ("|i1", 1),
        ("|u1", 1),
        ("<i2", 2),
        (">u8", 8),
        ("<f2", 2),
        (">f4", 4),
        ("<f16", 16),
        ("<c8", 8),
        ("<c32", 32),
        ("|S5", 5),
        ("<U3", 12),
        ("|V7", 7),
        ("void72", 9),
        ("<M8[ns]", 8),
        (">m8[25s]", 8),
        ("<M8", 8),
        ("<f1", 1),
        ("bfloat16", 2),
        ("int4", 1),
    ] {
        let leaf = one(&quoted(dtype), "[3,2]").unwrap();
        assert_eq!((leaf.item_bytes, leaf.bytes), (bytes, 6 * bytes), "{dtype}");
    }
}

#[test]
fn a_structured_dtype_is_the_sum_of_its_fields_and_its_padding() {
    let leaf =
        one(r#"[[["title","a"],"<i4",[]],["b",[["c","|V3",[2]]],[]],["","|V2",[]]]"#, r#"["*",4]"#).unwrap();
    assert_eq!((leaf.item_bytes, leaf.bytes, leaf.ragged, leaf.tie), (12, 48, true, None));
    let Dtype::Fields(fields) = leaf.dtype else { panic!("it has fields") };
    assert_eq!((fields[0].title.as_deref(), fields[0].name.as_str()), (Some("title"), "a"));
}

#[test]
fn a_letter_ties_the_length_of_a_ragged_leaf() {
    let leaf = one(r#""<f4""#, r#"["n",4]"#).unwrap();
    assert_eq!((leaf.bytes, leaf.ragged, leaf.tie, leaf.dims), (16, true, Some('n'), vec![4]));
}

#[test]
fn an_empty_leaf_has_no_bytes_and_a_scalar_has_those_of_one_item() {
    assert_eq!(one(r#""<f4""#, "[0,5]").unwrap().bytes, 0);
    assert_eq!(one(r#""<f4""#, "[]").unwrap().bytes, 4);
}

#[test]
fn names_may_be_any_text() {
    let text = br#"[["\u00fc/\ud83d\ude00 \"\\\n","<f4",[]]]"#;
    assert_eq!(schema::leaves(text).unwrap()[0].path, "ü/😀 \"\\\n");
}

#[test]
fn what_is_not_in_the_grammar_is_refused_and_said_why() {
    let deep = |depth: usize| format!("{}{}{}", r#"[["f","#.repeat(depth), r#""<f4""#, ",[]]]".repeat(depth));
    for (dtype, dims, what) in [
        (r#""|O""#, "[]", "dtype is not known"),
        (r#""O8""#, "[]", "dtype is not known"),
        (r#""f4""#, "[]", "dtype is not known"),
        (r#""=f4""#, "[]", "dtype is not known"),
        (r#""<f4,<f4""#, "[]", "dtype is not known"),
        (r#""(2,)<f4""#, "[]", "dtype is not known"),
        (r#""<f3""#, "[]", "dtype is not known"),
        (r#""|S05""#, "[]", "dtype is not known"),
        (r#""|S99999999999999999999""#, "[]", "dtype is not known"),
        (r#""<U9223372036854775807""#, "[]", "dtype is not known"),
        (r#""<M8[xs]""#, "[]", "dtype is not known"),
        (r#""<M8[0s]""#, "[]", "dtype is not known"),
        (r#""void7""#, "[]", "dtype is not known"),
        (r#""""#, "[]", "dtype is not known"),
        (r#""float32""#, "[]", "dtype is not known"),
        (r#""|S0""#, "[]", "no bytes"),
        ("[]", "[]", "no bytes"),
        (r#""<f4""#, "[-1]", "out of range"),
        (r#""<f4""#, "[9223372036854775808]", "out of range"),
        (r#""<f4""#, "[9223372036854775807]", "larger than an address space"),
        (r#""<f4""#, "[4294967296,4294967296]", "larger than an address space"),
        (r#""<f4""#, "[0,4294967296,4294967296]", "larger than an address space"),
        (r#""<f4""#, r#"[2,"*"]"#, "out of range"),
        (r#""<f4""#, r#"[2,"n"]"#, "out of range"),
        (r#""<f4""#, r#"["nn"]"#, "neither a number nor * nor a letter"),
        (r#""<f4""#, r#"[""]"#, "neither a number nor * nor a letter"),
        (r#""<f4""#, r#"["1"]"#, "neither a number nor * nor a letter"),
        (r#""<f4""#, "[1,]", "out of range"),
        (r#""<f4""#, "[ 1]", "out of range"),
        (r#"[["f","<f4",["*"]]]"#, "[]", "out of range"),
        (r#"[["f","|S4611686018427387904",[2]]]"#, "[]", "larger than an address space"),
        (&deep(MAX_FIELD_DEPTH + 1), "[]", "too deep"),
        (r#""<f4""#, &format!("[{}1]", "1,".repeat(MAX_DIMENSIONS)), "too many dimensions"),
    ] {
        let refused = one(dtype, dims).unwrap_err();
        assert!(refused.what.contains(what) && refused.leaf == Some(0), "{dtype} {dims}: {refused}");
    }
    one(&deep(MAX_FIELD_DEPTH), &format!("[{}1]", "1,".repeat(MAX_DIMENSIONS - 1))).unwrap();
    for (text, what) in [
        (&b"[]"[..], "no leaves"),
        (b"", "form of a schema"),
        (b"{}", "form of a schema"),
        (b"[[\"x\"", "form of a schema"),
        (b"[[\"x", "ends in the middle"),
        (b"[[\"\xc3\xbc\"", "not ASCII"),
        (br#"[["\ud83d""#, "half of a character"),
        (br#"[["\ude00""#, "half of a character"),
        (br#"[["\x""#, "an escape"),
        (br#"[["\u12"#, "an escape"),
        (br#"[["x","<f4",[]]]]"#, "something follows"),
    ] {
        let refused = schema::leaves(text).unwrap_err();
        assert!(refused.what.contains(what), "{}: {refused}", String::from_utf8_lossy(text));
    }
}

#[test]
fn texts_names_and_numbers_of_leaves_are_bounded() {
    let refused = |text: String| schema::leaves(text.as_bytes()).unwrap_err().what;
    assert!(refused(" ".repeat(MAX_TEXT_BYTES + 1)).contains("too long"));
    assert!(
        refused(format!(r#"[["{}","<f4",[]]]"#, "x".repeat(MAX_NAME_BYTES + 1))).contains("name is too long")
    );
    let leaf = r#"["","<f4",[]],"#;
    assert!(refused(format!("[{}", leaf.repeat(MAX_LEAVES + 1))).contains("too many leaves"));
    assert!(refused(format!(r#"[["x",[{}"#, leaf.repeat(MAX_LEAVES))).contains("too many leaves"));
    assert!(refused("[".repeat(1 << 20)).contains("form of a schema"));
    assert!(refused(format!(r#"[["x",{}"#, r#"[["",""#.repeat(100_000))).contains("dtype is not known"));
    assert!(refused(format!(r#"[["x",{}"#, r#"[["","#.repeat(100_000))).contains("too deep"));
}

#[test]
fn rows_have_no_ragged_leaf_and_no_name_twice() {
    assert_eq!(schema::columns(br#"[["a","<f4",[2]],["b","|u1",[]]]"#).unwrap().len(), 2);
    let twice = schema::columns(br#"[["a","<f4",[2]],["a","|u1",[]]]"#).unwrap_err();
    assert_eq!((twice.leaf, twice.what), (Some(1), "two leaves have the same name"));
    assert!(schema::columns(br#"[["a","<f4",["*"]]]"#).unwrap_err().what.contains("ragged"));
    assert_eq!(schema::leaves(br#"[["a","<f4",[2]],["a","|u1",[]]]"#).unwrap().len(), 2, "samples may have");
}

#[test]
fn the_tree_of_weights_has_every_leaf_once() {
    let with = |tree: &str| {
        let text = format!(r#"{{"leaves":[["a","float32",[2]],["b","bfloat16",[]]],"tree":{tree}}}"#);
        schema::weights(text.as_bytes())
    };
    let read = with(r#"{"dict":[["x",{"list":[1,null]}],[-3,{"tuple":[0]}],[true,{"list":[]}]]}"#).unwrap();
    assert!(read.fits(&[8, 2]) && !read.fits(&[8, 3]) && !read.fits(&[8]));
    let deep = |depth: usize| {
        format!(
            "{}[0,1]{}",
            r#"{"list":["#.repeat(depth) + r#"{"list":"#,
            "}".to_owned() + &"]}".repeat(depth)
        )
    };
    with(&deep(MAX_TREE_DEPTH - 1)).unwrap();
    for (tree, what) in [
        (r#"{"list":[0]}"#, "not in the tree"),
        (r#"{"list":[0,1,1]}"#, "twice"),
        (r#"{"list":[0,2]}"#, "leaf that is none"),
        (r#"{"set":[0,1]}"#, "form of a schema"),
        (r#"{"dict":[0,1]}"#, "form of a schema"),
        (r#"{"dict":[["x",0],[1.5,1]]}"#, "form of a schema"),
        ("\"a\"", "form of a schema"),
        ("{}", "form of a schema"),
        (&deep(MAX_TREE_DEPTH), "too deep"),
        (&r#"{"list":["#.repeat(1 << 20), "too deep"),
        (&format!(r#"{{"list":[0,1{}"#, ",null".repeat(2 * MAX_LEAVES)), "too many branches"),
    ] {
        let refused = with(tree).unwrap_err();
        assert!(refused.what.contains(what), "{}: {refused}", &tree[..tree.len().min(60)]);
    }
}

#[test]
fn the_leaves_of_weights_are_numbers_sorted_by_their_paths() {
    for (leaves, what) in [
        (r#"[["b","float32",[]],["a","float32",[]]]"#, "not sorted"),
        (r#"[["a","float32",[]],["a","float32",[]]]"#, "not sorted"),
        (r#"[["a","float32",["*"]],["b","float32",[]]]"#, "ragged"),
        (r#"[["a","object",[]],["b","float32",[]]]"#, "not known"),
        (r#"[["a","<f4",[]],["b","float32",[]]]"#, "not known"),
        (r#"[["a",[["f","<f4",[]]],[]],["b","float32",[]]]"#, "form of a schema"),
    ] {
        let refused = schema::weights(format!(r#"{{"leaves":{leaves},"tree":{{"list":[0,1]}}}}"#).as_bytes())
            .unwrap_err();
        assert!(refused.what.contains(what), "{leaves}: {refused}");
    }
}

// ── any text ────────────────────────────────────────────────────────────────────────────────────────────────────────

fn name() -> impl Strategy<Value = String> {
    prop_oneof!["[a-z/]{0,8}", "\\PC{0,5}"]
}

fn plain() -> impl Strategy<Value = String> {
    const FIXED: &[&str] =
        &["|b1", "<i4", ">f8", "<f16", "<c8", "|S3", "<U2", "|V5", "void24", "<M8[ns]", "bfloat16", "<f1"];
    proptest::sample::select(FIXED).prop_map(str::to_owned)
}

fn dtype() -> impl Strategy<Value = Dtype> {
    plain().prop_map(Dtype::Plain).prop_recursive(3, 12, 4, |inner| {
        let field = (proptest::option::of(name()), name(), inner, vec(0usize..4, 0..3));
        let field = field.prop_map(|(title, name, dtype, dims)| Field { title, name, dtype, dims });
        vec(field, 1..4).prop_map(Dtype::Fields)
    })
}

fn samples() -> impl Strategy<Value = String> {
    let first = proptest::option::of(proptest::option::of(proptest::char::range('a', 'z')));
    let leaf = (name(), dtype(), first, vec(0usize..1000, 0..4));
    let leaf = leaf.prop_map(|(path, dtype, first, dims)| Leaf {
        path,
        dtype,
        item_bytes: 0,
        ragged: first.is_some(),
        tie: first.flatten(),
        dims,
        bytes: 0,
    });
    vec(leaf, 1..5).prop_map(|leaves| leaves_text(&leaves))
}

fn weights() -> impl Strategy<Value = String> {
    let dims = vec(0usize..1000, 0..4);
    let dtype = proptest::sample::select(&["float32", "bfloat16", "bool", "complex128"][..]);
    let leaves = proptest::collection::btree_map(name(), (dtype, dims), 1..6);
    (leaves, any::<u8>()).prop_map(|(leaves, shape)| {
        let mut tree = Node::Nothing;
        for (number, path) in leaves.keys().enumerate() {
            tree = match (shape as usize + number) % 3 {
                0 => Node::List(std::vec![tree, Node::Leaf(number)]),
                1 => Node::Tuple(std::vec![Node::Leaf(number), tree]),
                _ => Node::Dict(std::vec![
                    (Key::Text(path.clone()), Node::Leaf(number)),
                    (Key::Number(-(number as i64)), tree),
                    (Key::Flag(true), Node::List(std::vec![])),
                ]),
            };
        }
        let leaf = |(path, (dtype, dims)): (String, (&str, Vec<usize>))| Leaf {
            path,
            dtype: Dtype::Plain(dtype.to_owned()),
            item_bytes: 0,
            ragged: false,
            tie: None,
            dims,
            bytes: 0,
        };
        weights_text(&WeightSchema { leaves: leaves.into_iter().map(leaf).collect(), tree })
    })
}

/// Whatever the bytes are: they are refused, or they are a schema whose sizes are those of its leaves.
fn check(text: &[u8]) {
    if let Ok(leaves) = schema::leaves(text) {
        for leaf in &leaves {
            let product: u128 = leaf.dims.iter().map(|&dim| dim as u128).product();
            assert_eq!(leaf.bytes as u128, leaf.item_bytes as u128 * product);
        }
        assert_eq!(schema::leaves(leaves_text(&leaves).as_bytes()).unwrap(), leaves);
    }
    if let Ok(read) = schema::weights(text) {
        assert!(read.fits(&read.leaves.iter().map(|leaf| leaf.bytes).collect::<Vec<_>>()));
        assert_eq!(schema::weights(weights_text(&read).as_bytes()).unwrap(), read);
    }
    let _ = schema::columns(text);
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 2000, ..ProptestConfig::default() })]

    #[test]
    fn any_bytes_are_refused_or_read(bytes in vec(any::<u8>(), 0..300)) {
        check(&bytes);
    }

    #[test]
    fn bytes_of_the_alphabet_are_refused_or_read(text in r#"[\[\]{},:"*0-9a-f<|\\-]{0,200}"#) {
        check(text.as_bytes());
    }

    #[test]
    fn what_is_written_is_read_back(samples in samples(), weights in weights()) {
        // A dtype of fields without any bytes is refused; all else is read.
        if let Err(refused) = schema::leaves(samples.as_bytes()) {
            prop_assert_eq!(refused.what, "a dtype has no bytes", "{}", samples);
        }
        prop_assert!(schema::weights(weights.as_bytes()).is_ok(), "{}", weights);
        check(samples.as_bytes());
        check(weights.as_bytes());
    }

    #[test]
    fn mutations_of_a_text_are_refused_or_read(
        (mut text, weights) in (samples(), weights()),
        changes in vec((any::<prop::sample::Index>(), any::<u8>(), 0u8..4), 1..4),
        of_weights in any::<bool>(),
    ) {
        if of_weights {
            text = weights;
        }
        let mut bytes = text.into_bytes();
        for (at, value, how) in changes {
            let at = at.index(bytes.len().max(1));
            match how {
                0 if at < bytes.len() => bytes[at] = value,
                1 if at < bytes.len() => bytes[at] ^= 1 << (value % 8),
                2 if at < bytes.len() => drop(bytes.remove(at)),
                _ => bytes.insert(at.min(bytes.len()), value),
            }
        }
        check(&bytes);
    }
}
