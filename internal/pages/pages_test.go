package pages

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"
)

const page = "# Walk\n\n1. First:\n\n   ```console\n   A$ echo 1\n   1\n   B$ cat <<EOF\n   > two\n   > EOF\n   two\n   ```\n\n## Then\n\n" +
	"```sql\nSELECT 1;\n```\n\n```console\nA$ exit 3\n```\n"

func TestBlocks(t *testing.T) {
	all := Blocks(page)
	if len(all) != 3 || all[0].Section != "Walk" || all[0].Line != 5 || all[1] != (Block{"sql", "Then", 16, "SELECT 1;\n"}) {
		t.Errorf("got %+v", all)
	}
}

func TestSteps(t *testing.T) {
	steps, err := Steps(page)
	if err != nil || len(steps) != 3 {
		t.Fatalf("got %+v, %v", steps, err)
	}
	if s := steps[1]; s.Terminal != "B" || s.SQL || s.Input != "cat <<EOF\ntwo\nEOF" || strings.Join(s.Want, "|") != "two" || s.Line != 8 {
		t.Errorf("got %+v", s)
	}
	if _, err := Steps("```console\nno prompt\n```\n"); err == nil {
		t.Error("a block without a prompt passes")
	}
}

func TestMatches(t *testing.T) {
	for _, c := range []struct {
		want, got string
		is        bool
	}{
		{"a b", "a   b  \n\n", true},
		{"", "", true},
		{"", "a", false},
		{"a", "", false},
		{"at …, x", "at 12:00, x", true},
		{"a.c", "abc", false},
		{"a\n…\nd", "a\nb\nc\nd", true},
		{"a\n…\nd", "a\nd", true},
		{"a\n…\nd", "a\nb", false},
	} {
		var want []string
		if c.want != "" {
			want = strings.Split(c.want, "\n")
		}
		if Matches(want, c.got) != c.is {
			t.Errorf("%q, %q", c.want, c.got)
		}
	}
}

// A walk notices an output that isn't the page's, a shell that ends, and its time's end.
func TestWalk(t *testing.T) {
	walk := Walk{Dir: t.TempDir(), Env: []string{"PATH=" + os.Getenv("PATH")}, Replace: map[string]string{"5432": "7"}}
	for script, fault := range map[string]string{
		"A$ X=1\nB$ echo \"<$X>\"\n<>\nA$ echo $X 5432\n1 5432": "",
		"A$ echo to; echo err >&2\nto\nerr":                     "",
		"A$ sleep 1000 &\nA$ echo 1\n1":                         "",
		"A$ printf 1\n1":                                        "",
		"A$ echo 1\n2":                                          "the page has",
		"A$ echo 1":                                             "the page has",
		"A$ exit 3":                                             "EOF",
		"A$ sleep 1000":                                         "EOF",
	} {
		ctx, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		steps, err := Steps("```console\n" + script + "\n```\n")
		if err != nil {
			t.Fatal(err)
		}
		err = walk.Run(ctx, steps)
		cancel()
		if (err == nil) != (fault == "") || err != nil && !strings.Contains(err.Error(), fault) {
			t.Errorf("%s: %v", script, err)
		}
	}
}

func TestFiles(t *testing.T) {
	files := Files("```python\n# work.py\nimport os\n```\n```java\n// a/B.java\nclass B {}\n```\n" +
		"```sql\n-- What follows is no file.\nSELECT 1;\n```\n```sh\n# ../up.sh\n```\n```console\n# c.py\n```\n")
	if len(files) != 2 || files["work.py"] != "# work.py\nimport os\n" || files["a/B.java"] != "// a/B.java\nclass B {}\n" {
		t.Errorf("got %q", files)
	}
}
