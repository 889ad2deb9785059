package browsertest

import (
	"context"
	"encoding/json"
	"fmt"
	"github.com/chromedp/chromedp/kb"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/chromedp/cdproto/emulation"
	"github.com/chromedp/cdproto/log"
	"github.com/chromedp/cdproto/runtime"
	"github.com/chromedp/chromedp"

	"github.com/wirefence/wirefence/internal/stack"
)

// visitor is a browser at the console. What it complains of is kept.
type visitor struct {
	t     *testing.T
	ctx   context.Context
	mu    sync.Mutex
	wrong []string
}

// visit starts a browser that knows nothing yet, and lets it in.
func (w *world) visit(t *testing.T, token string) *visitor {
	t.Helper()
	options := append(chromedp.DefaultExecAllocatorOptions[:], chromedp.NoSandbox, chromedp.WindowSize(1280, 900))
	allocated, cancel := chromedp.NewExecAllocator(context.Background(), options...)
	t.Cleanup(cancel)
	ctx, cancel := chromedp.NewContext(allocated, chromedp.WithErrorf(t.Logf))
	t.Cleanup(cancel)
	ctx, cancel = context.WithTimeout(ctx, 2*time.Minute)
	t.Cleanup(cancel)
	v := &visitor{t: t, ctx: ctx}
	chromedp.ListenTarget(ctx, v.hear)
	v.do("log on", log.Enable())
	v.do("enter", chromedp.Navigate("http://"+w.proxy.Admin+"/console/#token="+token), chromedp.WaitVisible("header nav"))
	return v
}

// hear keeps what a browser's console would show as an error or a warning.
func (v *visitor) hear(event any) {
	text := ""
	switch e := event.(type) {
	case *log.EventEntryAdded:
		if e.Entry.Level == log.LevelError || e.Entry.Level == log.LevelWarning {
			text = fmt.Sprintf("%s: %s (%s)", e.Entry.Level, e.Entry.Text, e.Entry.URL)
		}
	case *runtime.EventConsoleAPICalled:
		if e.Type == runtime.APITypeError || e.Type == runtime.APITypeWarning {
			for _, a := range e.Args {
				text += string(a.Value) + a.Description
			}
		}
	case *runtime.EventExceptionThrown:
		text = e.ExceptionDetails.Error()
	}
	if text == "" {
		return
	}
	v.mu.Lock()
	defer v.mu.Unlock()
	v.wrong = append(v.wrong, text)
}

// contented fails if the browser has complained, but for what is expected.
func (v *visitor) contented(expected ...string) {
	v.t.Helper()
	v.mu.Lock()
	defer v.mu.Unlock()
	for _, text := range v.wrong {
		if !slices.ContainsFunc(expected, func(e string) bool { return strings.Contains(text, e) }) {
			v.t.Errorf("the browser says: %s", text)
		}
	}
	v.wrong = nil
}

func (v *visitor) do(what string, actions ...chromedp.Action) {
	v.t.Helper()
	if err := chromedp.Run(v.ctx, actions...); err != nil {
		v.t.Fatalf("%s: %v\n%s", what, err, v.text())
	}
}

// ask returns what an expression of JavaScript comes to.
func ask[T any](v *visitor, expression string) (value T) {
	v.t.Helper()
	v.do(expression, chromedp.Evaluate(expression, &value, func(p *runtime.EvaluateParams) *runtime.EvaluateParams { return p.WithAwaitPromise(true) }))
	return value
}

// text is what the page shows.
func (v *visitor) text() (text string) {
	_ = chromedp.Run(v.ctx, chromedp.Evaluate("document.body.innerText", &text))
	return text
}

// shows waits until the page shows something.
func (v *visitor) shows(texts ...string) {
	v.t.Helper()
	for _, text := range texts {
		stack.Eventually(v.t, "the page shows "+text, func() bool { return strings.Contains(v.text(), text) })
	}
}

// stands waits until the page's header says how its stream of events stands.
func (v *visitor) stands(state string) {
	v.t.Helper()
	stack.Eventually(v.t, "the page is "+state, func() bool { return ask[string](v, "document.querySelector('.state').textContent") == state })
}

// open goes to a page of the console, without loading anew.
func (v *visitor) open(path string) {
	v.t.Helper()
	ask[any](v, fmt.Sprintf("location.hash = %s; null", encoded(path)))
	v.do("the page", chromedp.WaitVisible("main h1, main h2"))
}

func encoded(text string) string {
	b, _ := json.Marshal(text)
	return string(b)
}

// click clicks the button, or the link, with a text.
func (v *visitor) click(text string) {
	v.t.Helper()
	v.do("click "+text, chromedp.Click(fmt.Sprintf(`//button[normalize-space()=%s]|//a[normalize-space()=%s]`, encoded(text), encoded(text)), chromedp.BySearch))
}

// size is one of a screen.
type size struct {
	name          string
	width, height int64
	phone         bool
}

var sizes = []size{{"desktop", 1280, 900, false}, {"phone", 390, 844, true}}

func (v *visitor) look(s size, theme string) {
	v.t.Helper()
	v.do("resize", chromedp.EmulateViewport(s.width, s.height, func(p *emulation.SetDeviceMetricsOverrideParams, _ *emulation.SetTouchEmulationEnabledParams) {
		p.Mobile = s.phone
	}),
		emulation.SetEmulatedMedia().WithFeatures([]*emulation.MediaFeature{{Name: "prefers-color-scheme", Value: theme}}))
}

// keep writes a screenshot to the folder that WIREFENCE_TEST_SCREENSHOTS names, for a person to
// look at.
func (v *visitor) keep(name string) {
	v.t.Helper()
	dir := os.Getenv("WIREFENCE_TEST_SCREENSHOTS")
	if dir == "" {
		return
	}
	var picture []byte
	v.do("screenshot", chromedp.FullScreenshot(&picture, 100))
	if err := os.WriteFile(filepath.Join(dir, name+".png"), picture, 0o644); err != nil {
		v.t.Fatal(err)
	}
}

func (v *visitor) tab() {
	v.t.Helper()
	v.do("tab", chromedp.KeyEvent(kb.Tab))
}
