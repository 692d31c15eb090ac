// Two stock y-websocket clients edit a document of the server at SYNC_URL, of which
// one goes away and comes back. Prints their state as base64 in the end.
import * as Y from 'yjs'
import { WebsocketProvider } from 'y-websocket'
import WebSocket from 'ws'
import assert from 'node:assert/strict'

const url = process.env.SYNC_URL
const protocols = process.env.SYNC_PROTOCOLS ? process.env.SYNC_PROTOCOLS.split(',') : []
const until = async (what, condition) => {
  for (let i = 0; i < 600; i++) {
    if (condition()) return
    await new Promise(resolve => setTimeout(resolve, 20))
  }
  assert.fail('never: ' + what)
}
const client = () => {
  const doc = new Y.Doc()
  const provider = new WebsocketProvider(url, 'plan', doc, { WebSocketPolyfill: WebSocket, disableBc: true, protocols })
  return { doc, provider, text: doc.getText('t') }
}

const a = client()
await until('a is in step', () => a.provider.synced)
assert.equal(a.text.toString(), 'from the server')
a.text.insert(0, 'A')
const b = client()
await until('b is in step', () => b.provider.synced && b.text.toString().startsWith('A'))

a.provider.awareness.setLocalStateField('name', 'Ada')
await until('b sees who is there', () => b.provider.awareness.getStates().get(a.doc.clientID)?.name === 'Ada')

// Away, both write; the edits meet when it is back.
a.provider.disconnect()
await until('b sees that a has left', () => !b.provider.awareness.getStates().has(a.doc.clientID))
a.text.insert(a.text.length, ' away')
a.doc.getMap('m').set('by', 'a')
b.text.delete(0, 1)
b.doc.getArray('l').push([1, { deep: [true] }])
a.provider.connect()
const same = () => Buffer.compare(Buffer.from(Y.encodeStateAsUpdate(a.doc)), Buffer.from(Y.encodeStateAsUpdate(b.doc))) === 0
await until('all is everywhere', () => a.text.toString() === 'from the server away' && b.text.toString() === a.text.toString() && a.doc.getArray('l').length === 2 && same())

console.log(JSON.stringify({ state: Buffer.from(Y.encodeStateAsUpdate(a.doc)).toString('base64') }))
for (const c of [a, b]) {
  c.provider.destroy()
  c.doc.destroy() // ends awareness, which has a timer
}
