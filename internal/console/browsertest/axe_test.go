package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"

	"github.com/chromedp/cdproto/page"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"
)

// axe is the file of axe-core that scripts/install-servers --test installs.
func axe() string {
	cache := os.Getenv("WIREFENCE_CACHE")
	if cache == "" {
		cache = "/var/cache/wirefence"
		if os.Getuid() != 0 {
			home, _ := os.UserCacheDir()
			cache = filepath.Join(home, "wirefence")
		}
	}
	return filepath.Join(cache, "axe-core", "axe.min.js")
}

// breach is a rule of axe-core that a page breaks.
type breach struct {
	ID    string `json:"id"`
	Help  string `json:"help"`
	Nodes []struct {
		HTML string `json:"html"`
		Why  string `json:"failureSummary"`
	} `json:"nodes"`
}

// accessible fails for each rule of axe-core that the page breaks.
func (v *visitor) accessible(what string) {
	v.t.Helper()
	code, err := os.ReadFile(axe())
	if err != nil {
		v.t.Fatalf("scripts/install-servers --test installs axe-core: %v", err)
	}
	var found []byte
	v.do("axe-core", chromedp.ActionFunc(func(ctx context.Context) error {
		found, err = examine(ctx, string(code))
		return err
	}))
	var breaches []breach
	if err := json.Unmarshal(found, &breaches); err != nil {
		v.t.Fatalf("%v: %s", err, found)
	}
	for _, b := range breaches {
		for _, n := range b.Nodes {
			v.t.Errorf("%s: %s (%s): %s\n%s", what, b.ID, b.Help, n.HTML, n.Why)
		}
	}
}

// examine runs axe-core in a world of its own: the page's lets no foreign code in.
func examine(ctx context.Context, code string) ([]byte, error) {
	tree, err := page.GetFrameTree().Do(ctx)
	if err != nil {
		return nil, err
	}
	world, err := page.CreateIsolatedWorld(tree.Frame.ID).Do(ctx)
	if err != nil {
		return nil, err
	}
	for _, step := range []string{code, "axe.run(document).then((r) => r.violations)"} {
		got, thrown, err := runtime.Evaluate(step).WithContextID(world).WithAwaitPromise(true).WithReturnByValue(true).Do(ctx)
		if err != nil {
			return nil, err
		}
		if thrown != nil {
			return nil, fmt.Errorf("axe-core: %w", thrown)
		}
		if step != code {
			return got.Value, nil
		}
	}
	return nil, nil
}
