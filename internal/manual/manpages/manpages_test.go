package manpages

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/spf13/cobra"
)

func TestWrite(t *testing.T) {
	t.Parallel()
	root := &cobra.Command{Use: "tool", Short: "A tool"}
	run := &cobra.Command{
		Use: "run [NAME]", Short: "Run it", Example: "  tool run a", Run: func(*cobra.Command, []string) {},
		Long: "Runs -- it's quick:\nyes.\n\nExit status:\n\n    3  a|b\n    .dot\n\nThe end.",
	}
	run.Flags().StringP("mode", "m", "fast", "how to run a\\b [TOOL_MODE]")
	run.Flags().Bool("old", false, "")
	run.Flags().Lookup("old").Hidden = true
	root.AddCommand(run, &cobra.Command{Use: "secret", Hidden: true, Run: func(*cobra.Command, []string) {}})
	folder := t.TempDir()
	if err := Write(root, folder, "v1", time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)); err != nil {
		t.Fatal(err)
	}
	pages := map[string]string{}
	for _, name := range []string{"tool.1", "tool-run.1"} {
		text, err := os.ReadFile(filepath.Join(folder, name))
		if err != nil {
			t.Fatal(err)
		}
		pages[name] = string(text)
	}
	if all, err := os.ReadDir(folder); err != nil || len(all) != 2 {
		t.Errorf("there are %d pages, %v", len(all), err)
	}
	for name, all := range map[string][]string{
		"tool.1": {`.TH "TOOL" "1" "Nov 2026" "wirefence v1" "Wirefence"`, ".SH SEE ALSO\n\\fBtool-run(1)\\fP"},
		"tool-run.1": {
			".SH NAME\ntool-run - Run it\n", "Runs -- it's quick:\nyes.\n", "\n3  a|b\n\\&.dot\n", "\\fB-m\\fP, \\fB--mode\\fP=\"fast\"\n", "how to run a\\\\b [TOOL_MODE]\n",
			".SH EXAMPLE\n", "tool run a\n", ".SH SEE ALSO\n\\fBtool(1)\\fP",
		},
	} {
		for _, want := range all {
			if !strings.Contains(pages[name], want) {
				t.Errorf("%q is missing in %s:\n%s", want, name, pages[name])
			}
		}
	}
	if strings.Contains(pages["tool-run.1"], "--old") {
		t.Error("a hidden flag is shown")
	}
}
