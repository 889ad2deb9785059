package ledger

import "testing"

func push(q *Queue[int], kinds ...Kind) {
	for i, k := range kinds {
		switch k {
		case CopyData:
			q.MarkCopyData()
		case CopyDone:
			q.MarkCopyDone()
		default:
			q.Push(k).Note = i
		}
	}
}

func TestAnErrorSkipsToTheNextSync(t *testing.T) {
	var q Queue[int]
	push(&q, Parse, Bind, Query, Execute, Sync, Parse)
	var dropped []Kind
	q.Skip(func(e *Entry[int]) { dropped = append(dropped, e.Kind) })
	if len(dropped) != 4 || q.Front().Kind != Sync || q.Ready() != 1 {
		t.Fatalf("dropped %v, front %v, ready %d", dropped, q.Front().Kind, q.Ready())
	}
	if e, ok := q.TakeReady(); !ok || e.Note != 4 {
		t.Fatalf("took %+v", e)
	}
}

func TestCopyInSwallowsSyncs(t *testing.T) {
	for _, c := range []struct {
		name   string
		sent   []Kind
		failed bool
		ready  int // outstanding after the COPY's answer
	}{
		{"sync before the data, done", []Kind{Execute, Sync, CopyData, CopyDone, Sync}, false, 1},
		{"sync before the data, failed", []Kind{Execute, Sync, CopyData, CopyDone, Sync}, true, 1},
		{"no data", []Kind{Execute, Sync, CopyDone, Sync}, false, 1},
		{"two commands", []Kind{Execute, CopyData, CopyDone, Sync, Query}, false, 2},
	} {
		t.Run(c.name, func(t *testing.T) {
			var q Queue[int]
			push(&q, c.sent...)
			q.BeginCopyIn()
			if c.failed {
				q.FailCopyIn()
				q.Skip(func(*Entry[int]) {})
			} else {
				q.EndCopyIn()
				q.Pop()
			}
			if q.Ready() != c.ready || q.Front() == nil || q.Front().Kind != Sync {
				t.Fatalf("ready %d, want %d; front %+v", q.Ready(), c.ready, q.Front())
			}
		})
	}
}

func TestADoubtfulSyncIsDroppedByTheNextAnswer(t *testing.T) {
	var q Queue[int]
	// The server may have read the Sync among the data before it failed.
	push(&q, Execute, CopyData, Sync, CopyData, CopyDone, Sync, Parse)
	q.BeginCopyIn()
	q.FailCopyIn()
	q.Skip(func(*Entry[int]) {})
	if _, ok := q.TakeReady(); !ok { // the one ReadyForQuery that comes
		t.Fatal("none awaited")
	}
	if e := q.Expect(Parse); e == nil {
		t.Fatal("the Sync that was swallowed still stands before the Parse")
	}
}

func TestTheRingGrowsInOrder(t *testing.T) {
	var q Queue[int]
	next := 0
	for round := range 100 {
		for i := range round % 23 {
			q.Push(Bind).Note = round*100 + i
		}
		for q.Len() > round%7 {
			if n := q.Front().Note; n < next {
				t.Fatalf("%d after %d", n, next)
			} else {
				next = n
			}
			q.Pop()
		}
	}
}

// The marks of copy data ask for no answer: once the COPY is over, however it
// went, nothing is outstanding.
func TestNothingIsLeftOfACopy(t *testing.T) {
	for name, end := range map[string]func(q *Queue[int]){
		"done":   (*Queue[int]).EndCopyIn,
		"failed": (*Queue[int]).FailCopyIn,
		"failed, and data still comes": func(q *Queue[int]) {
			q.FailCopyIn()
			push(q, CopyData, CopyDone)
		},
	} {
		var q Queue[int]
		push(&q, Query)
		q.BeginCopyIn()
		push(&q, CopyData, CopyDone)
		end(&q)
		if _, ok := q.TakeReady(); !ok || q.Len() != 0 {
			t.Errorf("%s: %d entries are left", name, q.Len())
		}
	}
}
