// Porcupine's answer to whether what clients did to the partitions is linearizable: each is a
// register of its next offset, to which an append adds one and which a read returns.
//
// In: a JSON object of partitions, each with "writes" and "reads", as triples of offset, begin and
// end in nanoseconds. Out: a line for each partition that is not. Exit code 1 if there is any.
package main

import (
	"encoding/json"
	"fmt"
	"os"
	"sort"
	"time"

	"github.com/anishathalye/porcupine"
)

type partition struct {
	Writes [][3]int64 `json:"writes"`
	Reads  [][3]int64 `json:"reads"`
}

type input struct {
	write bool
}

var model = porcupine.Model{
	Init: func() interface{} { return int64(0) },
	Step: func(state, in, out interface{}) (bool, interface{}) {
		next, offset := state.(int64), out.(int64)
		if in.(input).write {
			return offset == next, next + 1
		}
		return offset == next, next
	},
	Equal: func(one, other interface{}) bool { return one.(int64) == other.(int64) },
}

func main() {
	var partitions map[string]partition
	if err := json.NewDecoder(os.Stdin).Decode(&partitions); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(2)
	}
	names := make([]string, 0, len(partitions))
	for name := range partitions {
		names = append(names, name)
	}
	sort.Strings(names)
	bad := false
	for _, name := range names {
		var operations []porcupine.Operation
		add := func(rows [][3]int64, write bool) {
			for _, row := range rows {
				operations = append(operations, porcupine.Operation{
					ClientId: len(operations), Input: input{write}, Output: row[0],
					Call: row[1], Return: row[2],
				})
			}
		}
		add(partitions[name].Writes, true)
		add(partitions[name].Reads, false)
		result := porcupine.CheckOperationsTimeout(model, operations, 2*time.Minute)
		if result == porcupine.Illegal {
			fmt.Printf("%s: not linearizable\n", name)
			bad = true
		} else {
			fmt.Fprintf(os.Stderr, "%s: %d operations, %s\n", name, len(operations), result)
		}
	}
	if bad {
		os.Exit(1)
	}
}
