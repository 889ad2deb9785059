package main

import (
	"slices"
	"strings"
	"testing"

	"github.com/wirefence/wirefence/proxy/internal/rules"
)

// A rule whose text has changed is noticed.
func TestRulesAreThere(t *testing.T) {
	for _, rule := range slices.Concat(rules.All, []rules.Rule{rules.Text}, rules.Schema) {
		t.Run(rule.Name, func(t *testing.T) { rule.TakeOut(t) })
	}
}

// A subtest counts as its test, and a package's end by a panic or its timeout as the test that ran.
func TestReadAndWrite(t *testing.T) {
	got, err := read(strings.NewReader(`{"Action":"run","Package":"x/a","Test":"TestOne"}
{"Action":"run","Package":"x/a","Test":"TestOne/sub"}
{"Action":"fail","Package":"x/a","Test":"TestOne/sub"}
{"Action":"fail","Package":"x/a","Test":"TestOne"}
{"Action":"fail","Package":"x/a"}
{"Action":"run","Package":"x/b","Test":"TestTwo"}
{"Action":"fail","Package":"x/b"}
{"Action":"run","Package":"x/c","Test":"TestThree"}
{"Action":"pass","Package":"x/c","Test":"TestThree"}
{"Action":"pass","Package":"x/c"}`))
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	write(&out, []mutation{{"both", got.failed}, {"one", map[string]bool{"b.TestTwo": true}}}, []string{"a.TestOne", "b.TestTwo", "c.TestThree"})
	if _, table, _ := strings.Cut(out.String(), "alone  12\n"); table != `a.TestOne    x.
b.TestTwo    x!

1 of 3 tests fail for no rule:
c.TestThree
` {
		t.Errorf("wrote\n%s", out.String())
	}
	if _, err := read(strings.NewReader(`{"Action":"fail","Package":"x/a","FailedBuild":"x/a"}`)); err == nil {
		t.Error("a package that doesn't build is read as one that fails")
	}
}
