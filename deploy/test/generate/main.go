// Command generate writes deploy/kubernetes/injection.yaml: what the chart makes of its
// default values, for those who don't use Helm. It is run by `go generate ./deploy/helm`.
package main

import (
	_ "embed"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"regexp"
	"strings"

	"helm.sh/helm/v3/pkg/chart/loader"
	"helm.sh/helm/v3/pkg/chartutil"

	"github.com/wirefence/wirefence/deploy/test/template"
)

const (
	root     = ".."
	manifest = "kubernetes/injection.yaml"
)

func main() {
	text, err := injection(root)
	if err == nil {
		err = os.WriteFile(filepath.Join(root, manifest), []byte(text), 0o644)
	}
	if err != nil {
		fmt.Fprintln(os.Stderr, "generate:", err)
		os.Exit(1)
	}
}

//go:embed injection.txt
var preface string

// ofRelease are the labels that name a release, or Helm.
var ofRelease = regexp.MustCompile(`(?m)^ +app\.kubernetes\.io/(instance|version|managed-by): .*\n`)

// injection returns the manifest of the policy by the chart below a folder.
func injection(deploy string) (string, error) {
	c, err := loader.Load(filepath.Join(deploy, "helm/wirefence"))
	if err != nil {
		return "", err
	}
	files, err := template.Files(c, chartutil.Values{
		"mode": "sidecar", "migration": map[string]any{"enabled": false}, "injection": map[string]any{"enabled": true},
	}, "v1.36.0")
	if err != nil {
		return "", err
	}
	text := strings.TrimSpace(files["wirefence/templates/injection.yaml"])
	if text == "" {
		return "", errors.New("the chart makes no policy")
	}
	return preface + ofRelease.ReplaceAllString(text, "") + "\n", nil
}
