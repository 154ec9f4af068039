// Building and changing elements without markup in strings.
export function make(name, attributes = {}, ...children) {
  const element = name.startsWith("svg:")
    ? document.createElementNS("http://www.w3.org/2000/svg", name.slice(4)) : document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) if (value != null) element.setAttribute(key, value);
  element.append(...children);
  return element;
}
export const at = (id) => document.getElementById(id);
export const put = (element, text) => { if (element.textContent !== text) element.textContent = text; };
export const set = (element, name, value) => { if (element.getAttribute(name) !== value) element.setAttribute(name, value); };

// One child for each item, kept as long as its key is there, so that hover, focus and selection survive a change.
export function each(parent, items, key, create, update) {
  const before = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  items.forEach((item, index) => {
    const name = key(item);
    let child = before.get(name);
    before.delete(name);
    if (!child) { child = create(item); child.dataset.key = name; }
    update(child, item);
    if (parent.children[index] !== child) parent.insertBefore(child, parent.children[index] ?? null);
  });
  for (const child of before.values()) child.remove();
}
