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
		Use: "run [flags] [NAME]", Short: "Run it", Long: "Runs -- it's quick:\nyes.\n\n    as it is\n\nThe end.", Example: "  tool run a",
		Run: func(*cobra.Command, []string) {},
	}
	run.Flags().StringP("mode", "m", "fast", "how to ~run~ [it](#it) ([more](there.md))")
	Describe(run.Flags().Lookup("mode"), "Fencing", "TOOL_MODE")
	run.Flags().String("url", "", "where (required)")
	Describe(run.Flags().Lookup("url"), "", "TOOL_URL")
	run.Flags().String("url-file", "", "file with it")
	Describe(run.Flags().Lookup("url-file"), "", "TOOL_URL_FILE")
	run.Flags().Bool("quiet", false, "say nothing")
	run.Flags().String("plain", "", "a|b")
	run.Flags().Bool("old", false, "")
	run.Flags().Lookup("old").Hidden = true
	hidden := &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}}
	other := &cobra.Command{Use: "other", Short: "Another", Run: func(*cobra.Command, []string) {}}
	other.Flags().AddFlag(run.Flags().Lookup("mode"))
	other.Flags().String("url", "", "of another")
	Describe(other.Flags().Lookup("url"), "", "TOOL_URL")
	other.Flags().Int("limit", 1, "how many")
	Describe(other.Flags().Lookup("limit"), "", "TOOL_LIMIT")
	group := &cobra.Command{Use: "group", Short: "A group"}
	first := &cobra.Command{Use: "a", Short: "First", Run: func(*cobra.Command, []string) {}}
	second := &cobra.Command{Use: "b", Short: "Second", Run: func(*cobra.Command, []string) {}}
	for _, c := range []*cobra.Command{first, second} {
		c.Flags().Bool("all", false, "all of them")
		c.Flags().String("output", "text", "")
		c.Flags().Bool("own", false, "of "+c.Name())
	}
	group.AddCommand(first, second)
	root.AddCommand(run, other, group, hidden)
	return &Reference{Root: root, Main: run, Intro: "About."}
}

func TestMarkdown(t *testing.T) {
	t.Parallel()
	text, err := example().Markdown()
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"# Commands\n\nAbout.\n", "Commands: [`group`](#tool-group), [`group a`](#tool-group-a), [`group b`](#tool-group-b), [`other`](#tool-other), [`run`](#tool-run).", "## tool run\n\n```\ntool run [flags] [NAME]\n```\n\nRuns -- it's quick:\nyes.\n\n    as it is\n\nThe end.\n",
		"```sh\ntool run a\n```", "It has a flag for each of [its settings](settings.md#settings).", "| `--url string` |  | of another. `TOOL_URL` |\n\n[Settings](settings.md#settings): `--limit`, `--mode`.\n",
		"Second.\n\n| flag | default | |\n|---|---|---|\n| `--all` |  | all of them |\n| `--own` |  | of b |\n", "| `--plain string` |  | a\\|b |",
	} {
		if !strings.Contains(text, want) {
			t.Errorf("%q is missing in:\n%s", want, text)
		}
	}
	if strings.Contains(text, "--old") || strings.Contains(text, "secret") || strings.Contains(text, "--help") || strings.Contains(text, "--output string") {
		t.Errorf("it has what is hidden:\n%s", text)
	}
}

func TestSettings(t *testing.T) {
	t.Parallel()
	const heading = "| variable | default | meaning |\n|---|---|---|\n"
	want := "\n#### Flags\n\n" + heading + "| `TOOL_URL` | required | where. [In a file](#passwords-in-files): `TOOL_URL_FILE` |\n" +
		"\n#### Fencing\n\n" + heading + "| `TOOL_MODE` | `fast` | how to `run` [it](#it) ([more](there.md)) |\n" +
		"\n### Settings of other commands\n\n" + heading + "| `TOOL_LIMIT` | `1` | for `other`: how many |\n"
	r := example()
	if got := r.Settings(); got != want {
		t.Errorf("%s", got)
	}
	if usage := r.Main.Flags().Lookup("mode").Usage; usage != "how to run it [TOOL_MODE]" {
		t.Errorf("the help says %q", usage)
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
