package parsertest

import "testing"

// FuzzLexing: of any text that the real scanner accepts, sqltext must find the
// same comments, and of any that the grammar accepts the same statements.
func FuzzLexing(f *testing.F) {
	for _, text := range []string{
		"select 1; select 'a;''b' -- ;\n; /* ; /* ; */ */ select \"a;\"\"b\"",
		`select E'\';' || U&'\003b' || '\'; select $a$ ;$$ $a$; select B'1', X'f'`,
		"select 'a' \n 'b;', 1.5e3, .5, a<-1, b</**/@-2, $1; values (1); table t",
		"create function f() returns int begin atomic select 1; select case when a then 1 end; end; select 2",
		"create rule r as on insert to t do also (select 1; select 2); select U&\"d!0061;\" uescape '!'",
		"explain (analyze off) select é.$ü$;$ü$::text, a$$ from t; ;; copy t from stdin --\r; end",
	} {
		f.Add([]byte(text), false, uint16(0))
		f.Add([]byte(text), true, uint16(20))
	}
	f.Fuzz(func(t *testing.T, text []byte, escapes bool, at uint16) {
		var l lexing
		if difference := l.compare(string(text), escapes, 2); difference != "" {
			t.Fatalf("%q, escapes %v: %s", text, escapes, difference)
		}
		if int(at) <= len(text) && l.texts > 0 {
			for _, fence := range fences {
				if difference := l.compareAt(string(text), escapes, int(at), fence); difference != "" {
					t.Fatalf("%q, escapes %v: %s", text, escapes, difference)
				}
			}
		}
	})
}
