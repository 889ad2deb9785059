package manual

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func example() *Reference {
	root := &cobra.Command{Use: "tool", Short: "A tool"}
	run := &cobra.Command{
		Use: "run [NAME]", Short: "Run it", Long: "Runs -- it's `quick`:\nyes.\n\n  as it is\n  .dot\n\nThe end.", Example: "  tool run a",
		Run: func(*cobra.Command, []string) {},
	}
	run.Flags().StringP("mode", "m", "fast", "how to run it, "+strings.Repeat("in many words ", 20))
	Describe(run.Flags().Lookup("mode"), "Fencing", "TOOL_MODE")
	run.Flags().Bool("quiet", false, "say nothing")
	run.Flags().Bool("old", false, "")
	run.Flags().Lookup("old").Hidden = true
	hidden := &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
	root.AddCommand(run, hidden)
	return &Reference{Root: root, Intro: "About.", Statuses: map[string][]Status{"tool": {{"0", "done"}}, "tool run": {{"3", "a|b"}}}}
}

func find(t *testing.T, r *Reference, name string) *cobra.Command {
	t.Helper()
	c, _, err := r.Root.Find([]string{name})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestHelp(t *testing.T) {
	t.Parallel()
	var b strings.Builder
	if err := PrintHelp(&b, find(t, example(), "run"), 80); err != nil {
		t.Fatal(err)
	}
	text := b.String()
	for _, want := range []string{
		"Runs -- it's `quick`: yes.\n\n  as it is\n  .dot\n\nThe end.\n", "Usage:\n  tool run [flags] [NAME]\n", "Examples:\n  tool run a\n",
		"\nFlags:\n", "      --quiet ", "\nFencing:\n  -m, --mode string               how to run it,", "(default\n", "fast) [TOOL_MODE]\n",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "--old") {
		t.Error("a hidden flag is shown")
	}
	for line := range strings.Lines(text) {
		if len(line) > 81 {
			t.Errorf("a line of %d columns: %s", len(line), line)
		}
	}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text, err := example().Markdown()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Commands\n\nAbout.\n", "| [`tool run`](#tool-run) | Run it. |", "## tool run\n\n```\ntool run [flags] [NAME]\n```\n", "```\n  as it is\n  .dot\n```\n",
		"```sh\ntool run a\n```", "| `-m, --mode string` | `fast` | how to run it,", "`TOOL_MODE` |", "| 3 | a\\|b |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "secret") || strings.Contains(text, "--help") {
		t.Errorf("it has what is hidden:\n%s", text)
	}
}

func TestMan(t *testing.T) {
	t.Parallel()
	pages := example().Man("v1")
	if len(pages) != 2 {
		t.Fatalf("there are %d pages", len(pages))
	}
	for name, all := range map[string][]string{
		"tool.1": {`.TH "TOOL" 1 "" "wirefence v1" "Wirefence"`, ".SH COMMANDS\n.TP\n.BR tool\\-run (1)\nRun it.", ".SH EXIT STATUS\n.TP\n.B 0\ndone\n"},
		"tool-run.1": {
			".SH NAME\ntool\\-run \\- Run it\n", "Runs \\-\\- it\\(aqs \\(gaquick\\(ga:\nyes.\n", ".nf\n  as it is\n  .dot\n.fi\n", ".B \\-m, \\-\\-mode string\n",
			".TP\n.B 3\na|b\n", ".SH SEE ALSO\n.BR tool (1)\n",
		},
	} {
		for _, want := range all {
			if !strings.Contains(pages[name], want) {
				t.Errorf("%q is missing in %s:\n%s", want, name, pages[name])
			}
		}
	}
	if got := roff("a\\b\n.c"); got != "a\\eb\n\\&.c" {
		t.Errorf("escaped %q", got)
	}
}

// Fields are told as the encoder writes them, and each has a meaning.
func TestFields(t *testing.T) {
	t.Parallel()
	type inner struct {
		N int `json:"n" says:"a number"`
	}
	type outer struct {
		inner
		Name    string                        `json:"name,omitempty" says:"a name"`
		At      *time.Time                    `json:"at,omitempty" says:"a time"`
		Seconds *float64                      `json:"seconds" says:"a duration"`
		All     []inner                       `json:"all" says:"more"`
		By      map[string][2]json.RawMessage `json:"by" says:"values"`
		Yes     bool                          `json:"yes" says:"yes or no"`
		Unsaid  int                           `json:"-"`
	}
	r := &Reference{}
	fields, err := r.Fields(Output{Value: []outer{}})
	if err != nil {
		t.Fatal(err)
	}
	want := "[].n integer false, [].name string true, [].at time true, [].seconds number or null false, [].all list of objects false, [].all[].n integer false, [].by object false, [].yes boolean false"
	var got []string
	for _, f := range fields {
		got = append(got, fmt.Sprint(f.Path, " ", f.Type, " ", f.Absent))
	}
	if strings.Join(got, ", ") != want {
		t.Errorf("fields %q", got)
	}
	type silent struct {
		N int `json:"n"`
	}
	if _, err := r.Fields(Output{Value: silent{}}); err == nil || !strings.Contains(err.Error(), "manual.silent.n") {
		t.Errorf("a field without a meaning: %v", err)
	}
	r.Meanings = map[string]string{"manual.silent.n": "a number"}
	if _, err := r.Fields(Output{Value: silent{}}); err != nil {
		t.Error(err)
	}
}
