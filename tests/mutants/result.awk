# TAP in, how the case named `case_` went out: "ok", "not ok", or nothing where it did not run. Of a
# case that runs in a loop all lines count: one "not ok" makes it that.
/^(not )?ok [0-9]+ - / {
    bad = $1 == "not"
    sub(/^(not )?ok [0-9]+ - /, "")
    if (match($0, /^[^ ]+\.[ch]:[^:]+:[A-Za-z0-9_]+: /)) {
        split(substr($0, RSTART, RLENGTH), part, ":")
        $0 = part[3]
    }
    if ($0 == case_)
        seen = bad || seen == "not ok" ? "not ok" : "ok"
}
END { print seen }
