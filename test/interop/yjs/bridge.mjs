// Replicas of npm yjs that a Go test drives: each line of standard input is a
// list of commands, each line of standard output the list of their results.
import * as Y from 'yjs'
import { createInterface } from 'node:readline'

const docs = new Map()
const b64 = bytes => Buffer.from(bytes).toString('base64')
const bytes = text => new Uint8Array(Buffer.from(text, 'base64'))

// update collects what an edit sends to others.
const edit = (doc, f) => {
  const updates = []
  const collect = update => updates.push(b64(update))
  doc.on('update', collect)
  doc.transact(f)
  doc.off('update', collect)
  return updates
}

const value = v => {
  if (v && v.bytes) return bytes(v.bytes)
  if (v && v.type === 'map') return new Y.Map(Object.entries(v.init ?? {}))
  if (v && v.type === 'array') return Y.Array.from(v.init ?? [])
  if (v && v.type === 'text') return new Y.Text(v.init ?? '')
  if (v && v.type === 'doc') return new Y.Doc({ guid: v.guid })
  if (v && v.type === 'xml') {
    const e = new Y.XmlElement('p')
    e.setAttribute('class', 'a')
    e.insert(0, [new Y.XmlText('hello')])
    return e
  }
  if (v && v.undefined) return undefined
  return v
}

const edits = {
  set: (doc, c) => doc.getMap(c.root).set(c.key, value(c.value)),
  delete: (doc, c) => doc.getMap(c.root).delete(c.key),
  insert: (doc, c) => doc.getArray(c.root).insert(c.index % (doc.getArray(c.root).length + 1), c.values.map(value)),
  remove: (doc, c) => {
    const a = doc.getArray(c.root)
    const i = Math.min(c.index, a.length)
    a.delete(i, Math.min(c.count, a.length - i))
  },
  nested: (doc, c) => {
    const v = doc.getArray(c.root).toArray().find(v => v instanceof Y.Map)
    if (v) v.set(c.key, value(c.value))
  },
  write: (doc, c) => doc.getText(c.root).insert(c.index % (doc.getText(c.root).length + 1), c.text, c.attributes),
  erase: (doc, c) => {
    const t = doc.getText(c.root)
    const i = Math.min(c.index, t.length)
    t.delete(i, Math.min(c.count, t.length - i))
  },
  format: (doc, c) => {
    const t = doc.getText(c.root)
    const i = Math.min(c.index, t.length)
    t.format(i, Math.min(c.count, t.length - i), c.attributes)
  },
  embed: (doc, c) => doc.getText(c.root).insertEmbed(c.index % (doc.getText(c.root).length + 1), c.value)
}

// joined joins neighbours of text with the same attributes: toDelta also cuts where
// attributes change to and fro.
const joined = delta => delta.reduce((runs, run) => {
  const last = runs.at(-1)
  const same = a => JSON.stringify(Object.entries(a.attributes ?? {}).sort())
  if (last && typeof last.insert === 'string' && typeof run.insert === 'string' && same(last) === same(run)) last.insert += run.insert
  else runs.push({ ...run })
  return runs
}, [])

const commands = {
  // gc false keeps what was deleted, as some peers do
  new: c => {
    const doc = new Y.Doc({ gc: c.gc !== false })
    doc.clientID = c.client
    docs.set(c.doc, doc)
  },
  drop: c => docs.delete(c.doc),
  apply: c => { for (const u of c.updates) Y.applyUpdate(docs.get(c.doc), bytes(u)) },
  edit: c => edit(docs.get(c.doc), () => { for (const e of c.edits) edits[e.op](docs.get(c.doc), e) }),
  state: c => b64(Y.encodeStateAsUpdate(docs.get(c.doc), c.vector ? bytes(c.vector) : undefined)),
  waits: c => docs.get(c.doc).store.pendingStructs !== null || docs.get(c.doc).store.pendingDs !== null,
  vector: c => b64(Y.encodeStateVector(docs.get(c.doc))),
  merge: c => b64(Y.mergeUpdates(c.updates.map(bytes))),
  json: c => {
    const doc = docs.get(c.doc)
    const out = {}
    for (const [kind, names] of Object.entries(c.roots)) {
      for (const name of names) {
        out[name] = kind === 'map' ? doc.getMap(name).toJSON() : kind === 'array' ? doc.getArray(name).toJSON() : joined(doc.getText(name).toDelta())
      }
    }
    return JSON.stringify(out)
  },
  // trace runs an editing trace and tells how long it took, in milliseconds
  trace: c => {
    const doc = new Y.Doc()
    doc.clientID = 1
    const text = doc.getText('t')
    let size = 0
    doc.on('update', u => { size += u.length })
    const start = performance.now()
    for (const [at, del, ins] of c.trace) {
      doc.transact(() => {
        if (del) text.delete(at, del)
        if (ins) text.insert(at, ins)
      })
    }
    const edited = performance.now()
    const state = Y.encodeStateAsUpdate(doc)
    const encoded = performance.now()
    Y.applyUpdate(new Y.Doc(), state)
    return { edit: edited - start, encode: encoded - edited, load: performance.now() - encoded, updates: size, state: b64(state), length: text.length }
  }
}

for await (const line of createInterface({ input: process.stdin, crlfDelay: Infinity })) {
  const results = JSON.parse(line).map(c => {
    try {
      return { ok: commands[c.op](c) ?? null }
    } catch (e) {
      return { error: String(e) }
    }
  })
  process.stdout.write(JSON.stringify(results) + '\n')
}
